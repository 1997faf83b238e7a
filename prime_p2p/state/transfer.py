"""Serving state to others: the updates they missed, or a snapshot in pieces.

Whoever fetches checks all of it against digests before it is used: an update by the state it leads to, a piece by its
hash, the list of hashes by the digest that names the state.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from prime_p2p.network.node import Node
from prime_p2p.network.streams import Stream
from prime_p2p.outer.digest import PIECE
from prime_p2p.outer.journal import Journal
from prime_p2p.outer.state import OuterState
from prime_p2p.state import given
from prime_p2p.state.messages import (
    MAX_HISTORY,
    STATE,
    AskDescription,
    AskHashes,
    AskHave,
    AskOffers,
    AskPiece,
    AskUpdate,
    Busy,
    Description,
    Hashes,
    Have,
    NotHere,
    Offers,
    Part,
    Update,
    protocol,
)
from prime_p2p.state.pace import Pace
from prime_p2p.state.piece_file import Copy, PieceFile
from prime_p2p.state.shelf import Shelf

logger = logging.getLogger(__name__)

AT_ONCE_TO_A_PEER = 2  # updates and sessions: a peer asks for one at a time, and the one before may end a moment later
IDLE_STALLS = 6.0  # stall times that a session may be silent: who fetches asks again several times in that


@dataclass(frozen=True)
class ServingLimits:
    """How much of this peer's network others may take: ``rate`` in MB/s (0: no limit), and how many at a time."""

    rate: float = 0.0
    at_once: int = 8


@dataclass(frozen=True)
class Source:
    """What a peer serves from. ``state`` is called anew for each request; None from it: there is nothing yet.

    Snapshots are written to nameless files in ``directory``.
    """

    state: Callable[[], OuterState | None]
    journal: Journal
    description: dict[str, Any]
    directory: Path
    limits: ServingLimits = field(default_factory=ServingLimits)


class StateServer:
    """Serves our state to others. Whatever takes time happens in threads, and training never waits for it."""

    def __init__(self, node: Node, run: str, source: Source, stall: float) -> None:
        self._node = node
        self._run = run
        self._source = source
        self._stall = stall
        self._pace = Pace(source.limits.rate * 1e6)
        self._serving: Counter[str] = Counter()  # by peer
        self.shelf: Shelf

    async def serve(self) -> None:
        """Answer from now on."""
        self.shelf = Shelf(self._source.directory, self._source.state, self._source.journal)
        self._node.closes(self.shelf.close)
        await self._node.serve(protocol(self._run), STATE, self._answer)

    async def _answer(self, stream: Stream) -> None:
        request = await stream.receive(stall=self._stall)
        if isinstance(request, AskDescription):
            await stream.send(Description(), json.dumps(self._source.description).encode(), stall=self._stall)
        elif isinstance(request, AskUpdate):
            await self._in_turn(stream, self._send_update(stream, request))
        elif isinstance(request, AskOffers):
            await self._send_offers(stream)
        elif isinstance(request, AskHashes):
            await self._send_hashes(stream, request)
        elif isinstance(request, AskHave):
            await self._in_turn(stream, self._session(stream, request))

    async def _in_turn(self, stream: Stream, giving: Coroutine[Any, Any, None]) -> None:
        """Give what takes memory and time, to as many at once as may take it, and to no peer more than a share."""
        try:
            of_this_peer = self._serving[stream.peer_id]
            if self._serving.total() >= self._source.limits.at_once or of_this_peer >= AT_ONCE_TO_A_PEER:
                await stream.send(Busy(), stall=self._stall)
                return
            self._serving[stream.peer_id] += 1
            try:
                await giving
            finally:
                self._serving[stream.peer_id] -= 1
                self._serving += Counter()  # forgets those that are at zero
        finally:
            giving.close()  # where it was not begun

    async def _send_update(self, stream: Stream, request: AskUpdate) -> None:
        journal = self._source.journal
        entries = await asyncio.to_thread(journal.path_from, request.step, request.digest)
        try:
            entry, update = await asyncio.to_thread(journal.read, entries[0].step_before)
        except (IndexError, KeyError):  # the journal does not lead on from there
            await stream.send(NotHere(), stall=self._stall)
            return
        head = Update(
            step=entry.step_before,
            before=entry.digest_before,
            after=entry.digest_after,
            tokens=entry.tokens,
            bits=entry.bits,
            ahead=len(entries),
        )
        await stream.send(head, stall=self._stall)
        for buffer in update.buffers():
            await self._send_parts(stream, buffer)
            given.note(buffer.nbytes)

    async def _send_offers(self, stream: Stream) -> None:
        offered = await self.shelf.offered()
        present = await self.shelf.present()
        history: list[bytes] = []
        first = 0
        if present is not None:
            led = self._source.journal.history_of(present.step, present.digest)
            history = list(led.values())[MAX_HISTORY - 1 :: -1]
            first = present.step - len(history) + 1
        answer = Offers(snapshots=list(offered), steps=list(offered.values()), first=first, history=history)
        await stream.send(answer, stall=self._stall)

    async def _send_hashes(self, stream: Stream, request: AskHashes) -> None:
        contents = await self.shelf.contents(request.digest)
        if contents is None:
            await stream.send(NotHere(), stall=self._stall)
            return
        head = Hashes(step=contents.step, tokens=contents.tokens, n=contents.n)
        await stream.send(head, b"".join(contents.hashes), stall=self._stall)

    async def _session(self, stream: Stream, request: AskHave) -> None:
        file = await self._fetched(request.digest)
        if file is None:
            await stream.send(NotHere(), stall=self._stall)
            return
        await self._send_have(stream, file)
        buffer = memoryview(bytearray(PIECE))
        sent = 0
        try:
            while True:  # until the other side closes the stream
                asked = await stream.receive(stall=IDLE_STALLS * self._stall)
                self.shelf.find(file.digest)
                if isinstance(asked, AskHave):
                    await self._send_have(stream, file)
                elif isinstance(asked, AskPiece) and (piece := await self._read(file, asked.index, buffer)):
                    await self._send_parts(stream, piece)
                    sent += len(piece)
                else:
                    await stream.send(NotHere(), stall=self._stall)
                    return
        finally:
            if sent:
                given.note(sent, snapshots=1)

    async def _fetched(self, digest: bytes) -> PieceFile | None:
        try:
            return await self.shelf.fetch(digest)
        except OSError as error:
            logger.warning("no snapshot can be given: %s", error)
            return None

    @staticmethod
    async def _read(file: PieceFile, index: int, buffer: memoryview) -> memoryview | None:
        """A piece, in ``buffer``; None where it is not there, or not any more."""
        try:
            if index not in file.have and isinstance(file, Copy) and file.gives(index):
                await asyncio.to_thread(file.take, index)
            if not file.gives(index):
                return None
            return file.read_at_once(buffer, index) or await asyncio.to_thread(file.read_into, buffer, index)
        except OSError as error:
            logger.info("piece %d of a snapshot cannot be given: %s", index, error)
            return None

    async def _send_have(self, stream: Stream, file: PieceFile) -> None:
        count = len(file.contents.hashes)
        given = file.given
        if len(given) == count:
            await stream.send(Have(), stall=self._stall)
            return
        bits = np.zeros(count, np.bool_)
        bits[list(given)] = True
        await stream.send(Have(), np.packbits(bits).tobytes(), stall=self._stall)

    async def _send_parts(self, stream: Stream, buffer: memoryview) -> None:
        for start in range(0, len(buffer), self._pace.slice):
            part = buffer[start : start + self._pace.slice]
            await self._pace.take(len(part))
            await stream.send(Part(), part, stall=self._stall)
