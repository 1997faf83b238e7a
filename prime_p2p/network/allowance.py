"""How much one peer may ask of this one: so much a second, and a stock that it may use up at once."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

_REMEMBERED = 4096  # peers; the one that was quiet for longest is forgotten first


class Allowance:
    """One stock for each peer: ``stock`` at first, refilled by ``rate`` a second."""

    def __init__(self, rate: float, stock: float, now: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._stock = stock
        self._now = now
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what was left, and when

    def take(self, peer_id: str, cost: float = 1.0) -> float:
        """Use so much of a peer's stock; returns 0, or the seconds until it will have been enough where it is not.

        What was used beyond the stock is owed, but never more than another stock.
        """
        now = self._now()
        left, at = self._left.pop(peer_id, (self._stock, now))
        left = max(-self._stock, min(self._stock, left + (now - at) * self._rate) - cost)
        self._left[peer_id] = left, now
        if len(self._left) > _REMEMBERED:
            self._left.popitem(last=False)
        return max(0.0, -left / self._rate)
