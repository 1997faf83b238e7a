"""A look at a public run from outside, by its address: what its author says it is, and who is there."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prime_p2p.doctor.facts import Needs
from prime_p2p.doctor.needs import needs_of
from prime_p2p.errors import BadInput, Unreachable
from prime_p2p.estimate import WANTED_SHARE, Estimate
from prime_p2p.network.node import Node
from prime_p2p.network.visit import on_a_node
from prime_p2p.public import manifest_records
from prime_p2p.public.manifest import SignedManifest
from prime_p2p.public.public_run import load
from prime_p2p.public.run_address import RunAddress
from prime_p2p.recipe import Recipe
from prime_p2p.swarm import membership

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Look:
    """What is known of a run: its manifest, and its peers as ``membership.status`` describes them."""

    signed: SignedManifest
    peers: Sequence[dict[str, Any]] = ()

    @property
    def step(self) -> int:
        """The outer step that the run is at."""
        return max((row["outer_step"] for row in self.peers), default=0)

    @property
    def recipe(self) -> Recipe:
        """That which holds at present."""
        return self.signed.manifest.terms.recipe_at(self.step)

    @property
    def estimate(self) -> Estimate:
        """Of what a peer needs, in a group of those who are there and one more."""
        return Estimate(self.recipe, max(2, len(self.peers) + 1))

    @property
    def pace(self) -> float:
        """Seconds from one outer step to the next, at the median of the peers; 0 where nobody says."""
        paces = sorted(row["pace"] for row in self.peers if row["pace"] > 0)
        return paces[len(paces) // 2] if paces else 0.0

    @property
    def bandwidth(self) -> float | None:
        """Mbit/s with which a peer that is as fast as those there computes ``WANTED_SHARE`` of the time.

        None where nobody says how fast the run goes, or any bandwidth will do.
        """
        computing = WANTED_SHARE * self.pace / self.estimate.inner_seconds(1.0)
        return self.estimate.minimum_bandwidth(computing) if self.pace else None

    @property
    def needs(self) -> Needs:
        """What the run needs of a machine."""
        return needs_of(self.estimate, self.bandwidth or 0.0)

    @property
    def bootstraps(self) -> list[str]:
        """More addresses to find the run by."""
        return self.signed.manifest.bootstraps


def look_at(address: RunAddress, kept_in: Path | None = None) -> Look:
    """The newest manifest of a run, from the DHT, or where nobody can be asked from the folder of an earlier start.

    Raises Unreachable where nobody answers, BadInput where the run is not known or the folder is of another one.
    """

    async def ask(node: Node) -> tuple[SignedManifest | None, list[dict[str, Any]]]:
        return await manifest_records.newest(node, address.run), await membership.status(node, address.run)

    kept = None if kept_in is None else load(kept_in, address.run)
    bootstraps = [address.bootstrap, *(kept.manifest.bootstraps if kept else ())]
    try:
        found, peers = on_a_node(bootstraps, ask)
    except Unreachable as reason:
        if kept is None:
            raise
        logger.warning("going by the manifest in %s, as %s", kept_in, reason)
        return Look(kept)
    if found is None or (kept is not None and kept.seal.sequence > found.seal.sequence):
        found = kept
    if found is None:
        raise BadInput(
            f"run {address.name} is not known there: nobody keeps a manifest of it by the author {address.author}; is "
            "the address right, and was the run published?"
        )
    return Look(found, peers)
