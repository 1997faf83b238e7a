"""What a recipe needs, as the doctor compares it with a machine."""

from __future__ import annotations

from dataclasses import replace

from prime_p2p.doctor.facts import Needs
from prime_p2p.estimate import Estimate


def needs_of(estimate: Estimate) -> Needs:
    """The most that a peer takes; it takes the last of them in memory where it trains without a GPU."""
    on_the_cpu = replace(estimate, gpu=False).training_bytes
    return Needs(estimate.host_bytes, estimate.disk_bytes, replace(estimate, gpu=True).training_bytes, on_the_cpu)
