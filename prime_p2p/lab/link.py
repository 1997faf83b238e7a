"""A host's link to the network: how fast it is each way, and how long it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from prime_p2p.errors import BadInput

BURST = 0.010  # seconds of a rate that a link which was idle makes up for at once; a timer is late by about as much
QUEUE = 0.050  # seconds that a packet may wait for a link before it is dropped, at least


@dataclass(frozen=True)
class Link:
    """One host's link. Rates in Mbit/s, where 0 means no limit; ``delay`` in ms, for every packet in or out.

    Between two hosts lie the links of both, so a round trip takes twice the sum of their delays.
    """

    up: float = 0.0
    down: float = 0.0
    delay: float = 0.0

    def __post_init__(self) -> None:
        for name in ("up", "down", "delay"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise BadInput(f"a link's {name} must be 0 or more, not {value:g}")
