"""What a recipe needs, as the doctor compares it with a machine."""

from __future__ import annotations

from dataclasses import replace

from prime_p2p.doctor.facts import Needs
from prime_p2p.estimate import Estimate


def needs_of(estimate: Estimate, rate: float = 0.0) -> Needs:
    """The most that a peer takes; ``rate`` is in Mbit/s."""
    on_the_cpu = replace(estimate, gpu=False).training_bytes
    on_a_gpu = replace(estimate, gpu=True).training_bytes
    return Needs(estimate.host_bytes, estimate.disk_bytes, on_a_gpu, on_the_cpu, rate)
