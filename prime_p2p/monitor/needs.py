"""What a peer of a recipe needs, for the terminal and for programs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from prime_p2p.bandwidth import written_bandwidth
from prime_p2p.errors import BadInput
from prime_p2p.estimate import WANTED_SHARE, Estimate
from prime_p2p.monitor.text import duration, printable, size
from prime_p2p.recipe import RoundRecipe


@dataclass(frozen=True)
class Machine:
    """What is known of a peer's machine: Mbit/s each way, seconds of an inner step, bytes of GPU memory."""

    bandwidth: float | None = None
    step_seconds: float | None = None
    gpu_bytes: float | None = None

    def __post_init__(self) -> None:
        """Raises BadInput for a value that is no number above 0."""
        for name, value in (("--step-time", self.step_seconds), ("--gpu-memory", self.gpu_bytes)):
            if value is not None and not 0 < value < math.inf:
                raise BadInput(f"{name}: must be a number above 0")


def needs_json(estimate: Estimate, machine: Machine) -> dict[str, Any]:
    """As plain JSON values; what cannot be known without more of the machine is left out."""
    step, bandwidth = machine.step_seconds, machine.bandwidth
    found: dict[str, Any] = {
        "run": estimate.recipe.run.name,
        "licence": estimate.recipe.data.licence,
        "parameters": estimate.parameters,
        "peers": estimate.peers,
        "devices": estimate.devices,
        "group": estimate.group,
        "gpu_bytes": {
            "model": estimate.model_bytes,
            "activations_about": estimate.activation_bytes(estimate.at_a_time),
        },
        "host_bytes": estimate.host_bytes,
        "resume_bytes": estimate.resume_bytes,
        "disk_bytes": estimate.disk_bytes,
        "round_bytes": estimate.round_bytes,
    }
    if machine.gpu_bytes is not None:
        found["largest_batch"] = estimate.largest_batch(machine.gpu_bytes)
    if bandwidth is not None:
        found["round_seconds"] = estimate.round_seconds(bandwidth)
    if step is not None:
        found["bytes_per_hour"] = estimate.bytes_per_hour(step, bandwidth or math.inf)
        found["minimum_bandwidth_mbit"] = estimate.minimum_bandwidth(step)
    if step is not None and bandwidth is not None:
        found["compute_share"] = estimate.compute_share(step, bandwidth)
    return found


def needs_text(estimate: Estimate, machine: Machine) -> str:
    """A line for each need, and at the end what more would have to be given."""
    lines = [*_at_rest(estimate, machine), *_in_time(estimate, machine)]
    return "\n".join(f"{head:<14}  {line}" for head, line in lines)


def _at_rest(estimate: Estimate, machine: Machine) -> list[tuple[str, str]]:
    recipe, shape, keep = estimate.recipe, estimate.size, estimate.recipe.checkpoint.keep
    batch, context, several = estimate.at_a_time, recipe.model.context, estimate.devices > 1
    precision = str(estimate.precision).removeprefix("torch.")
    activations = f"about {size(estimate.activation_bytes(batch))} of activations, in {precision}"
    each = f" on each of {estimate.devices} GPUs" if several else ""
    lines = [
        ("run", recipe.run.name),
        ("model", f"{estimate.parameters:,} parameters: {shape.layers} layers of width {shape.width}"),
        ("data", printable(recipe.data.source)),
        ("", printable(f"licence: {recipe.data.licence or 'not said'}")),
        ("GPU memory", f"{size(estimate.model_bytes)} of parameters, gradients and moments, in float32{each}"),
        ("", f"{activations}: {batch} sequences of {context} tokens"),
    ]
    if machine.gpu_bytes is not None:
        lines.append(("", _fits(estimate, machine.gpu_bytes)))
    return [
        *lines,
        ("host memory", f"at most {size(estimate.host_bytes)}, beside PyTorch and the text"),
        ("", f"at most {size(estimate.resume_bytes)} for a moment, to resume with a GPU{', and to save' * several}"),
        ("disk", f"at most {size(estimate.disk_bytes)}"),
        ("", f"{keep} checkpoints (up to {size(estimate.checkpoint_bytes)} each), updates, snapshots"),
        ("round", f"every {_inner_steps(recipe.round)}, {_group(estimate)}"),
        (
            "",
            f"{size(estimate.round_bytes)} sent by each, and as much received"
            if estimate.group > 1
            else "nothing is sent",
        ),
    ]


def _fits(estimate: Estimate, gpu_bytes: float) -> str:
    largest, at_a_time = estimate.largest_batch(gpu_bytes), estimate.recipe.inner.micro_batch
    if largest == 0:
        return f"{size(gpu_bytes)} are not enough, whatever inner.batch_size is"
    verdict = "fits" if at_a_time <= largest else "does not fit: raise inner.accumulation"
    return f"{size(gpu_bytes)} have room for about {largest} sequences at a time; {at_a_time} {verdict}"


def _inner_steps(recipe: RoundRecipe) -> str:
    """How many there are, as in "50 inner steps (200 from outer step 100)"."""
    changes = ", ".join(f"{steps} from outer step {since}" for since, steps in recipe.inner_steps_schedule if since)
    return f"{recipe.inner_steps_at(0)} inner steps" + (f" ({changes})" if changes else "")


def _group(estimate: Estimate) -> str:
    if estimate.group == 1:
        return "of one peer alone"
    rest = "" if estimate.group == estimate.peers else f" of the {estimate.peers} (round.max_group)"
    return f"of {estimate.group} peers{rest}"


def _in_time(estimate: Estimate, machine: Machine) -> list[tuple[str, str]]:
    step, bandwidth = machine.step_seconds, machine.bandwidth
    lines = []
    if bandwidth is None:
        lines.append(("round time", "not known; give --bandwidth, as in 500Mbit"))
    else:
        seconds = _seconds(estimate.round_seconds(bandwidth))
        lines.append(("round time", f"about {seconds} at {written_bandwidth(bandwidth)}/s each way"))
    if step is None:
        lines.append(
            ("compute share", "not known, nor traffic an hour; give --step-time, the seconds of an inner step")
        )
        return lines
    lines.append(("inner steps", f"{_seconds(estimate.inner_seconds(step))} between two rounds"))
    shares = [_enough(estimate.minimum_bandwidth(step))]
    if bandwidth is not None:
        shares.insert(0, f"about {estimate.compute_share(step, bandwidth):.1%} of the time in inner steps")
    lines += zip(("compute share", ""), shares, strict=False)
    about = "at most" if bandwidth is None else "about"
    lines.append(("traffic", f"{about} {size(estimate.bytes_per_hour(step, bandwidth or math.inf))} an hour each way"))
    return lines


def _enough(minimum: float | None) -> str:
    if minimum is None:
        return f"never {WANTED_SHARE:.0%}: an outer step takes too long even without a transfer; make more inner steps"
    if minimum == 0:
        return f"at least {WANTED_SHARE:.0%} with any bandwidth"
    return f"at least {WANTED_SHARE:.0%} from {written_bandwidth(minimum)}/s each way on"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else duration(seconds)
