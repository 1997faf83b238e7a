"""Which peers have failed us, and until when they are not asked again."""

from __future__ import annotations

import logging
import time
from collections import Counter

from prime_p2p.network import dropped
from prime_p2p.network.frames import FrameError
from prime_p2p.state.messages import WrongBytes

logger = logging.getLogger(__name__)

FIRST_BREAK = 2.0  # seconds that a peer is set aside for its first failure; each further one doubles it
LONGEST_BREAK = 120.0
BUSY_BREAK = 1.0  # seconds until a peer that could not serve us, but did nothing wrong, is asked again


class Standing:
    """Peers that are set aside, each for longer with every failure."""

    def __init__(self) -> None:
        self._failures: Counter[str] = Counter()
        self._until: dict[str, float] = {}

    def fail(self, peer: str, reason: object) -> None:
        """``peer`` was lost, stood still or gave us something wrong."""
        pause = min(LONGEST_BREAK, FIRST_BREAK * 2 ** min(self._failures[peer], 10))
        self._failures[peer] += 1
        self._until[peer] = time.monotonic() + pause
        if isinstance(reason, (FrameError, WrongBytes)):
            dropped.note("state", reason, peer)
        logger.info("%s is set aside for %.0f s: %s", peer, pause, reason)

    def later(self, peer: str) -> None:
        """``peer`` has nothing for us just now."""
        self._until[peer] = time.monotonic() + BUSY_BREAK

    def failures(self, peer: str) -> int:
        return self._failures[peer]

    def good(self, peer: str) -> bool:
        """Whether ``peer`` may be asked."""
        return self._until.get(peer, 0.0) <= time.monotonic()
