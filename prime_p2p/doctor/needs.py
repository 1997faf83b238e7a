"""What a recipe needs, as the doctor compares it with a machine."""

from __future__ import annotations

from prime_p2p.doctor.facts import Needs
from prime_p2p.estimate import Estimate


def needs_of(estimate: Estimate) -> Needs:
    """The most that a peer takes; ``gpu_bytes`` are in memory where it trains without a GPU."""
    return Needs(estimate.host_bytes, estimate.disk_bytes, estimate.gpu_bytes)
