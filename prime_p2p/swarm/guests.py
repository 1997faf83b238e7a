"""Strangers at the door: who may open a stream is for a guard to say, by heartbeats that may not have been seen yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from prime_p2p.network.deadline import within
from prime_p2p.swarm.membership import Guard

LOOK_EVERY = 1.0  # seconds between two looks at the DHT for the heartbeats of those who have come
WAIT = 5.0  # seconds that one of them waits for such a look


class Guests:
    """Asks ``guard`` about them, and before there is one lets nobody in. ``look`` takes a look at all heartbeats."""

    def __init__(self, look: Callable[[], Awaitable[None]]) -> None:
        self.guard: Guard | None = None
        self._look = look
        self._looking = asyncio.Lock()
        self._looked_at = -LOOK_EVERY  # the loop's time

    async def lets_in(self, peer: str) -> bool:
        """Whether a peer may open a stream."""
        if self.guard is None:
            return False
        if not self.guard.lets_in(peer):
            with suppress(asyncio.TimeoutError):
                await within(WAIT, self._look_again())
        return self.guard.lets_in(peer)

    async def _look_again(self) -> None:
        """One look at a time and one a second, which serves all who have come by then."""
        loop = asyncio.get_running_loop()
        came = loop.time()
        async with self._looking:
            if self._looked_at >= came:
                return
            await asyncio.sleep(max(0.0, self._looked_at + LOOK_EVERY - loop.time()))
            self._looked_at = loop.time()
            await self._look()
