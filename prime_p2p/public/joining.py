"""What somebody who has a run's address does: look at the run, see whether this machine can take part, and join."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prime_p2p.bandwidth import written_bandwidth
from prime_p2p.errors import BadInput, Unreachable
from prime_p2p.estimate import Estimate
from prime_p2p.monitor.text import printable, size
from prime_p2p.network.node import Node
from prime_p2p.public import manifest_records
from prime_p2p.public.manifest import SignedManifest
from prime_p2p.public.network import on_a_node
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

    Raises Unreachable where there is neither.
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
        raise Unreachable(
            f"run {address.name} is not known there: nobody keeps a manifest of it by the author {address.author}; is "
            "the address right, and was the run published?"
        )
    return Look(found, peers)


@dataclass(frozen=True)
class Machine:
    """What this machine has, in bytes. ``gpu`` is the memory of the device to train on, 0 where that is the CPU."""

    memory: int
    disk: int
    gpu: int

    @classmethod
    def here(cls, directory: Path, gpu: int) -> Machine:
        """``directory`` is where the peer is to keep its files; it need not be there yet."""
        existing = next(folder for folder in (directory, *directory.absolute().parents) if folder.exists())
        return cls(_available_memory(), shutil.disk_usage(existing).free, gpu)


def _available_memory() -> int:
    """Bytes that a process may take without the machine having to swap."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_room(look: Look, machine: Machine) -> None:
    """Raises BadInput, with the number that is short, where the machine is too small for the run."""
    needs, batch = look.estimate, look.recipe.inner.batch_size
    on_device = needs.model_bytes + needs.activation_bytes(1)
    host = needs.host_bytes + (0 if machine.gpu else on_device)
    rows = [
        ("GPU memory", on_device, machine.gpu, "a GPU with more, or --device cpu") if machine.gpu else None,
        ("memory", host, machine.memory, "a machine with more, or end other programs"),
        ("disk space", needs.disk_bytes, machine.disk, "more room, or another folder with --dir"),
    ]
    for what, needed, there, advice in filter(None, rows):
        if needed > there:
            raise BadInput(
                f"this machine is too small for run {look.signed.manifest.name}: it needs {size(needed)} of {what} and "
                f"there are {size(there)}; it takes {advice}"
            )
    if machine.gpu and needs.largest_batch(machine.gpu) < batch:
        raise BadInput(
            f"this machine is too small for run {look.signed.manifest.name}: a batch of {batch} sequences needs "
            f"{size(needs.gpu_bytes)} of GPU memory and there are {size(machine.gpu)}; it takes a GPU with more"
        )


_ADMITTED = {"open": "open to anybody", "allow": "peers that its author has listed", "token": "by invitation"}


def description(look: Look) -> list[tuple[str, str]]:
    """What joining means: pairs of a word and what there is to say."""
    manifest, recipe, needs = look.signed.manifest, look.recipe, look.estimate
    shape = recipe.model
    phase = {"pause": ", paused by its author", "end": ", ended"}.get(manifest.terms.phase_at(look.step), "")
    progress = f"outer step {look.step} of {recipe.run.outer_steps or 'no end'}{phase}"
    rounds = f"{size(needs.round_bytes)} each way every {recipe.round.inner_steps} inner steps"
    on_device = needs.model_bytes + needs.activation_bytes(recipe.inner.batch_size)
    lines = [
        ("run", f"{manifest.name}, manifest {manifest.sequence} signed by {manifest.author}"),
        ("peers", f"{len(look.peers)} there, {progress}" if look.peers else "nobody there just now"),
        ("model", f"{needs.parameters / 1e6:,.4g} M parameters, {shape.layers} layers, context {shape.context}"),
        ("data", f"{recipe.data.source} (licence: {recipe.data.licence or 'not stated'})"),
        ("admission", _ADMITTED[manifest.admission.rule]),
        ("memory", f"{size(on_device)} where the model is, {size(needs.host_bytes)} beside it"),
        ("disk", f"{size(needs.disk_bytes)} at most"),
        ("traffic", rounds),
    ]
    if look.pace:
        step = max(look.pace - needs.round_seconds(1000.0), 0.9 * look.pace) / recipe.round.inner_steps
        bandwidth = needs.minimum_bandwidth(step)
        lines[-1] = (
            "traffic",
            f"{rounds}: {size(needs.round_bytes * 3600 / look.pace)} an hour at the pace of the run",
        )
        lines.append(
            (
                "bandwidth",
                f"{written_bandwidth(bandwidth)} or more, for 90 % of the time computing" if bandwidth else "any",
            )
        )
    return [(word, printable(text)) for word, text in lines]


def gpu_memory(device: str) -> int:
    """Bytes of memory of the GPU that a peer with this ``--device`` would train on; 0 where that is the CPU."""
    if device == "cpu":
        return 0
    import torch

    if not torch.cuda.is_available():
        return 0  # where a GPU was asked for, starting the peer says what is wrong
    index = int(device.partition(":")[2] or 0)
    return int(torch.cuda.get_device_properties(index).total_memory)
