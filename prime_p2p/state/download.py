"""Fetching a snapshot from many peers at once: whoever gives pieces faster is asked for more of them."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from prime_p2p.long_work import Advance, ignore
from prime_p2p.network import tasks
from prime_p2p.network.frames import FrameError
from prime_p2p.network.streams import StreamError
from prime_p2p.state.backlog import Backlog
from prime_p2p.state.client import Lacking, Occupied, Session, StateClient
from prime_p2p.state.messages import TransferError, WrongBytes
from prime_p2p.state.piece_file import Growing
from prime_p2p.state.standing import Standing
from prime_p2p.state.wanted import Wanted

logger = logging.getLogger(__name__)

DONORS = 8  # peers that pieces are fetched from at a time
AHEAD = 0.25  # seconds of pieces that are asked for before they are due, so that no donor waits for our next question
BEING_CHECKED = 6  # pieces at most that are here and not yet checked, beside one from each donor
LEAST_ASKED, MOST_ASKED = 2, 8  # pieces on their way from one donor
LOOK_EVERY = 0.5  # seconds between two looks at who else may give pieces
LATE = 2 * AHEAD  # seconds, and what a piece takes, after which it is asked for elsewhere too
IDLE = 0.2  # seconds between two looks of a donor that has nothing to do
NOTHING_FOR_US = 0.5  # seconds without a piece after which a peer that has none for us may lose its place to another
GIVE_UP_STALLS = 6.0  # stall times without a new piece after which a download ends


class Download:
    """Fetches what ``file`` lacks from ``peers()``, checks every piece when it arrives, and gives it to ``backlog``.

    A donor that is lost, stands still or gives a wrong piece costs what it was asked for at that time, and is set
    aside; the pieces come from the others. Near the end, pieces that are late are asked for again elsewhere. One that
    has nothing for us makes room where others wait to be asked: among many who download, few may have the last piece.
    """

    def __init__(
        self,
        client: StateClient,
        file: Growing,
        backlog: Backlog,
        peers: Callable[[], Collection[str]],
        standing: Standing,
        advance: Advance = ignore,
    ) -> None:
        self._client = client
        self._file = file
        self._backlog = backlog
        self._peers = peers
        self._standing = standing
        self._advance = advance
        self._loop = asyncio.get_running_loop()
        self._wanted = Wanted(file.lacking, self._loop.time)
        self._lacking: set[str] = set()  # peers that do not have this snapshot
        self._waiting = 0  # peers that may be asked, beyond those that are
        self._last_piece = self._loop.time()
        self.room = asyncio.Semaphore(DONORS + BEING_CHECKED)

    async def run(self) -> None:
        """Return when nothing is lacking. Raises TransferError where nobody gives what is."""
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
        begun = idle[: DONORS - len(fetching)]
        for peer in begun:
            fetching[peer] = asyncio.create_task(self._fetch_from(peer))
        self._waiting = len(idle) - len(begun)

    def make_room(self, peer: str) -> bool:
        """Have ``peer``, which has nothing for us now, give its place to another one; False where none waits for it."""
        if not self._waiting:
            return False
        self._waiting -= 1
        self._standing.later(peer)
        return True

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
        except Occupied:
            self._standing.later(peer)
        except Lacking:
            self._lacking.add(peer)
            self._standing.later(peer)
        except (StreamError, FrameError, TransferError) as error:
            self._standing.fail(peer, error)
        finally:
            self._wanted.give_back(peer)

    async def receive(self, session: Session, index: int) -> Piece:
        """The next piece of a session, which is the one of this index."""
        place = self._file.place(index)
        buffer = place if place is not None else memoryview(bytearray(self._file.length_of(index)))
        try:
            await session.receive(buffer)
        except BaseException:
            if place is not None:
                self._file.give_back(index)
            raise
        return Piece(index, buffer, place is not None)

    async def take(self, peer: str, piece: Piece) -> None:
        """Check a piece in a thread, and have it written to the file."""
        index = piece.index
        # If this is cancelled, the thread goes on reading the piece, whose place stays taken.
        right = await asyncio.to_thread(self._file.proves, index, piece.data)
        if not right:
            if piece.in_place:
                self._file.give_back(index)
            raise WrongBytes(f"{peer} gave a piece that is not the one it was asked for")
        if self._wanted.wants(index):  # otherwise another peer gave it at the same time
            self._file.accept(index, piece.data, piece.in_place)
            self._backlog.add(index, piece.data)
            self._wanted.done(index)
            self._advance(len(piece.data))
            self._last_piece = self._loop.time()


@dataclass(frozen=True)
class Piece:
    """A piece that has come, ``in_place`` or in memory of its own."""

    index: int
    data: memoryview
    in_place: bool


class _Stream:
    """The pieces that one peer gives. While they are checked in threads, the next ones come in."""

    def __init__(self, download: Download, peer: str, session: Session) -> None:
        self._download = download
        self._peer = peer
        self._session = session
        self._wanted = download._wanted
        self._loop = asyncio.get_running_loop()
        self._asked: deque[int] = deque()
        self._checking: set[asyncio.Task[None]] = set()
        self._seconds = 0.0  # a piece takes, as far as we know
        self._last = self._loop.time()
        self._gave_at = self._last

    @property
    def _has_nothing(self) -> bool:
        """Whether the peer has nothing for us, and has given nothing for a while."""
        idle = self._loop.time() - self._gave_at
        return idle > NOTHING_FOR_US and self._wanted.disjoint(self._session.have)

    async def run(self) -> None:
        try:
            while self._wanted.left:
                await self._ask()
                if self._asked:
                    await self._receive()
                elif self._checking:
                    await asyncio.wait(self._checking)
                elif self._has_nothing and self._download.make_room(self._peer):
                    return
                else:
                    await self._wait_for_work()
                for task in [task for task in self._checking if task.done()]:
                    self._checking.discard(task)
                    task.result()
        finally:
            await tasks.end(self._checking)

    async def _receive(self) -> None:
        room = self._download.room
        await room.acquire()
        try:
            piece = await self._download.receive(self._session, self._asked.popleft())
            self._measure()
        except BaseException:
            room.release()
            raise
        checking = asyncio.create_task(self._download.take(self._peer, piece))
        checking.add_done_callback(lambda _: room.release())
        self._checking.add(checking)

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
        took, self._last, self._gave_at = now - self._last, now, now
        self._seconds = took if not self._seconds else 0.7 * self._seconds + 0.3 * took
