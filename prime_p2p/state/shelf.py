"""The snapshots that a peer gives: its own state, written down when somebody first asks, and what it has fetched."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prime_p2p.network import tasks
from prime_p2p.outer.journal import Journal
from prime_p2p.outer.state import OuterState
from prime_p2p.state.piece_file import Contents, Copy, PieceFile

logger = logging.getLogger(__name__)

KEPT = 2  # snapshots that are offered at most: one that some still fetch, and a newer one for those who come now
LIFETIME = 300.0  # seconds that a snapshot stays for which nobody asks


@dataclass
class _Kept:
    file: PieceFile
    asked_at: float


class Shelf:
    """Snapshots by digest, each in a file of its own in ``directory`` that is gone with this process.

    ``state`` gives the peer's present state, or None while it has none. Lives in one event loop.
    """

    def __init__(self, directory: Path, state: Callable[[], OuterState | None], journal: Journal) -> None:
        self.directory = directory
        self._state = state
        self._journal = journal
        self._kept: dict[bytes, _Kept] = {}
        self._beginning = asyncio.Lock()
        self._writing: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def present(self) -> Contents | None:
        """What our present state is made of, None while we have none."""
        state = self._state()
        return None if state is None else await asyncio.to_thread(_contents_of, state)

    async def offered(self) -> dict[bytes, int]:
        """Outer steps by digest of all that can be asked for."""
        present = await self.present()
        self._tidy()
        offered = {digest: kept.file.contents.step for digest, kept in self._kept.items()}
        if present is not None and self._room(present.step):
            offered[present.digest] = present.step
        return offered

    async def contents(self, digest: bytes) -> Contents | None:
        """What a snapshot is made of, None where it is not here."""
        if digest in self._kept:
            return self._kept[digest].file.contents
        present = await self.present()
        return present if present is not None and present.digest == digest else None

    def put(self, file: PieceFile) -> None:
        """Give the pieces of ``file`` too, as they come."""
        self._kept.pop(file.digest, None)
        # Those who are fetching an older one go on: its file is there as long as they are.
        while len(self._kept) >= KEPT:
            self.drop(min(self._kept, key=lambda digest: self._kept[digest].file.contents.step))
        self._kept[file.digest] = _Kept(file, time.monotonic())
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LIFETIME / 4, self._look)

    def complete(self, copy: Copy) -> None:
        """Give a copy, and write what it lacks before the next outer step, whoever asks for which piece."""
        self.put(copy)
        writing = asyncio.create_task(self._write(copy))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)

    def drop(self, digest: bytes) -> None:
        self._kept.pop(digest, None)

    def find(self, digest: bytes) -> PieceFile | None:
        """A snapshot that is here, which counts as asking for it."""
        kept = self._kept.get(digest)
        if kept is None:
            return None
        kept.asked_at = time.monotonic()
        return kept.file

    async def fetch(self, digest: bytes) -> PieceFile | None:
        """A snapshot, begun to be written where it is our present state; None where it is neither here nor that.

        Raises OSError where it cannot be written.
        """
        async with self._beginning:
            self._tidy()
            state = self._state()
            if digest not in self._kept and state is not None and self._room(state.step):
                contents = await self.present()
                if contents is not None and contents.digest == digest:
                    self.complete(Copy.of(self.directory, state, contents))
            return self.find(digest)

    async def close(self) -> None:
        """Give nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
        await tasks.end(self._writing)
        self._kept.clear()

    async def _write(self, copy: Copy) -> None:
        begun = len(copy.have)
        try:
            for index in copy.missing:
                if not await asyncio.to_thread(copy.take, index):
                    break
            else:
                logger.info("wrote a snapshot of outer step %d", copy.contents.step)
                return
            logger.info("no whole snapshot of outer step %d: the next one came in between", copy.contents.step)
        except OSError as error:
            logger.warning("no snapshot of outer step %d: %s", copy.contents.step, error)
        if not begun:  # of one that was fetched others have the rest
            self.drop(copy.digest)

    def _room(self, present: int) -> bool:
        """Whether a snapshot of our present state, at this outer step, may be written: not where one will do."""
        near = present - self._journal.length // 2
        return len(self._kept) < KEPT or all(kept.file.contents.step < near for kept in self._kept.values())

    def _tidy(self) -> None:
        """Forget what nobody wants, and what is so old that our journal does not lead on from it."""
        state = self._state()
        oldest = 0 if state is None else state.step - self._journal.length
        since = time.monotonic() - LIFETIME
        for digest, kept in list(self._kept.items()):
            if kept.asked_at < since or kept.file.contents.step < oldest:
                self.drop(digest)

    def _look(self) -> None:
        self._tidy()
        self._timer = asyncio.get_running_loop().call_later(LIFETIME / 4, self._look) if self._kept else None


def _contents_of(state: OuterState) -> Contents:
    with state.lock:
        return Contents(state.step, state.tokens, len(state.anchor), list(state.pieces))
