"""A limit on bytes a second, shared by all who send."""

from __future__ import annotations

import asyncio

from prime_p2p.outer.digest import PIECE

_SLICES = 8  # a second: so often something is sent at least, to show that we are alive
_SMALLEST = 16 * 1024


class Pace:
    """Bytes may leave at ``rate`` a second, 0 for as fast as they can; ``slice`` is how many to send at a time."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free_at = 0.0
        self.slice = max(_SMALLEST, min(PIECE, int(rate / _SLICES))) if rate else PIECE

    async def take(self, count: int) -> None:
        """Wait until ``count`` bytes may leave; who asks first goes first."""
        if not self._rate:
            return
        now = asyncio.get_running_loop().time()
        begin = max(self._free_at, now)
        self._free_at = begin + count / self._rate
        await asyncio.sleep(begin - now)
