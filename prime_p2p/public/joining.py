"""What somebody who wants to join a run is shown, and whether this machine can take part."""

from __future__ import annotations

from pathlib import Path

from prime_p2p.bandwidth import written_bandwidth
from prime_p2p.doctor import machine
from prime_p2p.doctor.checks import room
from prime_p2p.doctor.facts import Gpu
from prime_p2p.doctor.gpu import GpuProbe
from prime_p2p.errors import BadInput
from prime_p2p.estimate import WANTED_SHARE
from prime_p2p.monitor.text import printable, size
from prime_p2p.public.look import Look

GPU_ANSWERS = 30.0  # seconds for PyTorch to say what there is


def check_goes_on(look: Look) -> None:
    """Raises BadInput where the run has ended, and nobody is there to have its state from."""
    manifest = look.signed.manifest
    if not look.peers and any(entry.phase == "end" for entry in manifest.changes):
        raise BadInput(f"run {manifest.name} has ended, and nobody of it is there")


def check_room(look: Look, directory: Path, device: str) -> None:
    """Raises BadInput, with the number that is short, where the machine is too small for the run.

    ``device`` is the peer's, and ``directory`` where it is to keep its files; that need not be there yet.
    """
    with GpuProbe() as probe:
        gpu = Gpu() if device == "cpu" else probe.result(GPU_ANSWERS)
    found = room(machine.memory(), machine.disk(directory), gpu, look.needs)
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
    bandwidth = look.bandwidth
    enough = (
        f"{written_bandwidth(bandwidth)}/s or more, to compute {WANTED_SHARE:.0%} of the time" if bandwidth else "any"
    )
    return [("traffic", f"{each}: {hourly} an hour at the pace of the run"), ("bandwidth", enough)]
