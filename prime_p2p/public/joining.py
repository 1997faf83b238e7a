"""What somebody who has a run's address does: look at the run, see whether this machine can take part, and join."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prime_p2p.bandwidth import written_bandwidth
from prime_p2p.doctor import machine
from prime_p2p.doctor.checks import room
from prime_p2p.doctor.facts import Gpu
from prime_p2p.doctor.gpu import GpuProbe
from prime_p2p.doctor.needs import needs_of
from prime_p2p.errors import BadInput, Unreachable
from prime_p2p.estimate import WANTED_SHARE, Estimate
from prime_p2p.monitor.text import printable, size
from prime_p2p.network.node import Node
from prime_p2p.network.visit import on_a_node
from prime_p2p.public import manifest_records
from prime_p2p.public.manifest import SignedManifest
from prime_p2p.public.public_run import load
from prime_p2p.public.run_address import RunAddress
from prime_p2p.recipe import Recipe
from prime_p2p.swarm import membership

logger = logging.getLogger(__name__)

GPU_ANSWERS = 30.0  # seconds for PyTorch to say what there is


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


def look_at(address: RunAddress, kept_in: Path) -> Look:
    """The newest manifest of a run, from the DHT, or where nobody can be asked from the folder of an earlier start.

    Raises Unreachable where nobody answers, BadInput where the run is not known or the folder is of another one.
    """

    async def ask(node: Node) -> tuple[SignedManifest | None, list[dict[str, Any]]]:
        return await manifest_records.newest(node, address.run), await membership.status(node, address.run)

    kept = load(kept_in, address.run)
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
    look = Look(found, peers)
    if not peers and any(entry.phase == "end" for entry in found.manifest.changes):
        raise BadInput(f"run {address.name} has ended, and nobody of it is there")
    return look


def check_room(look: Look, directory: Path, device: str) -> None:
    """Raises BadInput, with the number that is short, where the machine is too small for the run.

    ``device`` is the peer's, and ``directory`` where it is to keep its files; that need not be there yet.
    """
    with GpuProbe() as probe:
        gpu = Gpu() if device == "cpu" else probe.result(GPU_ANSWERS)
    found = room(machine.memory(), machine.disk(directory), gpu, needs_of(look.estimate))
    short = [f"{one.name}: {one.figure}, {one.text}; {one.advice}" for one in found if one.result == "problem"]
    if short:
        raise BadInput(f"this machine is too small for run {look.signed.manifest.name}: {'. '.join(short)}")


_ADMITTED = {"open": "open to anybody", "allow": "peers that its author has listed", "token": "by invitation"}


def description(look: Look) -> list[tuple[str, str]]:
    """What joining means: pairs of a word and what there is to say."""
    manifest, recipe, needs = look.signed.manifest, look.recipe, look.estimate
    phase = {"pause": ", paused by its author", "end": ", ended"}.get(manifest.terms.phase_at(look.step), "")
    progress = f"outer step {look.step} of {recipe.run.outer_steps or 'no end'}{phase}"
    lines = [
        ("run", f"{manifest.name}, manifest {manifest.sequence} signed by {manifest.author}"),
        ("peers", f"{len(look.peers)} there, {progress}" if look.peers else "nobody there just now"),
        (
            "model",
            f"{needs.parameters / 1e6:,.4g} M parameters, {needs.size.layers} layers, context {recipe.model.context}",
        ),
        ("data", f"{recipe.data.source} (licence: {recipe.data.licence or 'not stated'})"),
        ("admission", _ADMITTED[manifest.admission.rule]),
        ("memory", f"{size(needs.training_bytes)} where the model is, {size(needs.host_bytes)} beside it"),
        ("disk", f"{size(needs.disk_bytes)} at most"),
        *_network(look),
    ]
    return [(word, printable(text)) for word, text in lines]


def _network(look: Look) -> list[tuple[str, str]]:
    needs, inner_steps = look.estimate, look.recipe.round.inner_steps_at(look.step)
    each = f"{size(needs.round_bytes)} each way every {inner_steps} inner steps"
    if not look.pace:
        return [("traffic", each)]
    hourly = size(needs.round_bytes * 3600 / look.pace)
    computing = WANTED_SHARE * look.pace / needs.inner_seconds(1.0)
    bandwidth = needs.minimum_bandwidth(computing)
    enough = (
        f"{written_bandwidth(bandwidth)}/s or more, to compute {WANTED_SHARE:.0%} of the time" if bandwidth else "any"
    )
    return [("traffic", f"{each}: {hourly} an hour at the pace of the run"), ("bandwidth", enough)]
