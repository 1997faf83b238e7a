"""Fetching a snapshot from many peers at once: whoever gives pieces faster is asked for more of them."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import deque
from collections.abc import Callable, Collection

from prime_p2p.network import tasks
from prime_p2p.network.frames import FrameError
from prime_p2p.network.streams import StreamError
from prime_p2p.outer.digest import PIECE
from prime_p2p.state.client import Lacking, Session, StateClient
from prime_p2p.state.messages import TransferError, WrongBytes
from prime_p2p.state.piece_file import Growing
from prime_p2p.state.standing import Standing
from prime_p2p.state.wanted import Wanted

logger = logging.getLogger(__name__)

DONORS = 8  # peers that pieces are fetched from at a time
AHEAD = 0.25  # seconds of pieces that are asked for before they are due, so that no donor waits for our next question
BEING_STORED = 6  # pieces in memory at most that are not on their way from a donor
LEAST_ASKED, MOST_ASKED = 2, 8  # pieces on their way from one donor
LOOK_EVERY = 0.5  # seconds between two looks at who else may give pieces
LATE = 2 * AHEAD  # seconds, and what a piece takes, after which it is asked for elsewhere too
IDLE = 0.2  # seconds between two looks of a donor that has nothing to do
GIVE_UP_STALLS = 6.0  # stall times without a new piece after which a download ends


class Download:
    """Fetches what ``file`` lacks from ``peers()``, and checks every piece when it arrives.

    A donor that is lost, stands still or gives a wrong piece costs what it was asked for at that time, and is set
    aside; the pieces come from the others. Near the end, pieces that are late are asked for again elsewhere.
    """

    def __init__(
        self, client: StateClient, file: Growing, peers: Callable[[], Collection[str]], standing: Standing
    ) -> None:
        self._client = client
        self._file = file
        self._peers = peers
        self._standing = standing
        self._loop = asyncio.get_running_loop()
        self._wanted = Wanted(file.missing, self._loop.time)
        self._lacking: set[str] = set()  # peers that do not have this snapshot
        self._last_piece = self._loop.time()
        self._being_stored: set[int] = set()
        self._buffers: asyncio.Queue[memoryview] = asyncio.Queue()
        for _ in range(DONORS + BEING_STORED):
            self._buffers.put_nowait(_buffer())

    async def run(self) -> None:
        """Return when the file is whole. Raises TransferError where nobody gives what it lacks, OSError of the file."""
        fetching: dict[str, asyncio.Task[None]] = {}
        finished = asyncio.ensure_future(self._wanted.finished.wait())
        try:
            while self._wanted.left:
                self._begin(fetching)
                waiting = {finished, *fetching.values()}
                await asyncio.wait(waiting, timeout=LOOK_EVERY, return_when=asyncio.FIRST_COMPLETED)
                for peer in [peer for peer, task in fetching.items() if task.done()]:
                    fetching.pop(peer).result()
                self._check_progress(bool(fetching))
        finally:
            await tasks.end([finished, *fetching.values()])

    def _begin(self, fetching: dict[str, asyncio.Task[None]]) -> None:
        idle = [peer for peer in self._peers() if peer not in fetching and self._standing.good(peer)]
        random.shuffle(idle)
        idle.sort(key=lambda peer: (peer in self._lacking, self._standing.failures(peer)))
        for peer in idle[: DONORS - len(fetching)]:
            fetching[peer] = asyncio.create_task(self._fetch_from(peer))

    def _check_progress(self, fetching: bool) -> None:
        if not self._wanted.left or (fetching and not self._overdue):
            return
        if self._overdue:
            raise TransferError("nobody gave a piece of the snapshot for too long")
        if self._lacking.issuperset(self._peers()):
            raise TransferError("nobody has the snapshot any more")

    @property
    def _overdue(self) -> bool:
        return self._loop.time() - self._last_piece > GIVE_UP_STALLS * self._client.stall

    async def _fetch_from(self, peer: str) -> None:
        """Fetch from one peer until nothing is left to fetch, or it fails."""
        try:
            session = await self._client.session(peer, self._file.digest, len(self._file.contents.hashes))
            self._lacking.discard(peer)
            try:
                await _Stream(self, peer, session).run()
            finally:
                session.end()
        except Lacking:
            self._lacking.add(peer)
            self._standing.later(peer)
        except (StreamError, FrameError, TransferError) as error:
            self._standing.fail(peer, error)
        finally:
            self._wanted.give_back(peer)

    def _stored(self, index: int) -> None:
        self._file.have.add(index)
        self._wanted.done(index)
        self._last_piece = self._loop.time()

    async def _store(self, peer: str, index: int, buffer: memoryview) -> None:
        """Check and write a piece in a thread, and give the buffer back.

        No piece is written by two threads: when all are here, none is at work any more.
        """
        try:
            while index in self._being_stored:  # another peer gave it at the same time, and maybe a wrong one
                await self._wanted.change(IDLE)
            if self._wanted.wants(index):
                self._being_stored.add(index)
                try:
                    right = await asyncio.to_thread(self._file.store, index, buffer[: self._file.length_of(index)])
                finally:
                    self._being_stored.discard(index)
                if not right:
                    raise WrongBytes(f"{peer} gave a piece that is not the one it was asked for")
                self._stored(index)
        except asyncio.CancelledError:
            buffer = _buffer()  # the thread goes on with the other one
            raise
        finally:
            self._buffers.put_nowait(buffer)


def _buffer() -> memoryview:
    return memoryview(bytearray(PIECE))


class _Stream:
    """The pieces that one peer gives. While they are checked and written in threads, the next ones come in."""

    def __init__(self, download: Download, peer: str, session: Session) -> None:
        self._download = download
        self._peer = peer
        self._session = session
        self._wanted = download._wanted
        self._loop = asyncio.get_running_loop()
        self._asked: deque[int] = deque()
        self._storing: set[asyncio.Task[None]] = set()
        self._seconds = 0.0  # a piece takes, as far as we know
        self._last = self._loop.time()

    async def run(self) -> None:
        try:
            while self._wanted.left:
                await self._ask()
                if self._asked:
                    await self._receive()
                elif self._storing:
                    await asyncio.wait(self._storing)
                else:
                    await self._wait_for_work()
                for task in [task for task in self._storing if task.done()]:
                    self._storing.discard(task)
                    task.result()
        finally:
            await tasks.end(self._storing)

    async def _receive(self) -> None:
        index = self._asked.popleft()
        buffer = await self._download._buffers.get()
        try:
            await self._session.receive(buffer[: self._download._file.length_of(index)])
        except BaseException:
            self._download._buffers.put_nowait(buffer)
            raise
        self._measure()
        self._storing.add(asyncio.create_task(self._download._store(self._peer, index, buffer)))

    async def _ask(self) -> None:
        goal = LEAST_ASKED
        if self._seconds:
            goal = max(LEAST_ASKED, min(MOST_ASKED, 1 + math.ceil(AHEAD / self._seconds)))
        while len(self._asked) < goal:
            index = self._wanted.take(self._peer, self._session.have, LATE + self._seconds)
            if index is None:
                return
            self._asked.append(index)
            await self._session.ask(index)

    async def _wait_for_work(self) -> None:
        await self._wanted.change(IDLE)
        self._last = self._loop.time()
        if not self._session.whole and self._wanted.left:
            await self._session.refresh()

    def _measure(self) -> None:
        now = self._loop.time()
        took, self._last = now - self._last, now
        self._seconds = took if not self._seconds else 0.7 * self._seconds + 0.3 * took
