"""The pieces that a download still lacks, and who has been asked for which."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Set
from contextlib import suppress

from prime_p2p.network.deadline import within

AT_MOST = 2  # peers that are asked for the same piece


class Wanted:
    """A queue that all streams of a download take from, so that each gets work as fast as it does it.

    Pieces come in an order of this peer's own: many who download at the same time soon have different ones to share.
    ``now`` is the time in seconds.
    """

    def __init__(self, missing: Iterable[int], now: Callable[[], float]) -> None:
        self._queue = list(missing)
        random.shuffle(self._queue)
        self._left = set(self._queue)
        self._asked: dict[int, dict[str, float]] = {}  # piece -> peer -> when
        self._now = now
        self._changed = asyncio.Event()
        self.finished = asyncio.Event()
        if not self._left:
            self.finished.set()

    @property
    def left(self) -> int:
        return len(self._left)

    def take(self, peer: str, have: Set[int], patience: float) -> int | None:
        """A piece to ask ``peer`` for, which has those in ``have``; None where there is none now.

        When the queue is empty, one that another peer was asked for more than ``patience`` seconds ago.
        """
        for position in range(len(self._queue) - 1, -1, -1):
            if self._queue[position] in have:
                return self._note(self._queue.pop(position), peer)
        late = [
            (min(askers.values()), index)
            for index, askers in self._asked.items()
            if peer not in askers and len(askers) < AT_MOST and index in have
        ]
        oldest, index = min(late, default=(self._now(), 0))
        return self._note(index, peer) if oldest < self._now() - patience else None

    def _note(self, index: int, peer: str) -> int:
        self._asked.setdefault(index, {})[peer] = self._now()
        return index

    def wants(self, index: int) -> bool:
        return index in self._left

    def disjoint(self, have: Set[int]) -> bool:
        """Whether none of these is wanted."""
        return self._left.isdisjoint(have)

    def done(self, index: int) -> None:
        """The piece is here."""
        self._left.discard(index)
        self._asked.pop(index, None)
        if not self._left:
            self.finished.set()
        self._tell()

    def give_back(self, peer: str) -> None:
        """What ``peer`` was asked for does not come from it."""
        for index, askers in list(self._asked.items()):
            askers.pop(peer, None)
            if not askers:
                del self._asked[index]
                self._queue.append(index)
        self._tell()

    async def change(self, timeout: float) -> None:
        """Wait until something is done or given back, ``timeout`` seconds at most."""
        with suppress(asyncio.TimeoutError):
            await within(timeout, self._changed.wait())

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
