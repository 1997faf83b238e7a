"""State between peers: whoever lacks it asks one that has it, for the updates it missed or for a snapshot.

Everything fetched is checked against digests before it is used: an update by the journal that reads it back, a snapshot
by the digest of its pieces, which names the state.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from blake3 import blake3
from pydantic import Field

from prime_p2p.allreduce.codec import BlockVector, Float32
from prime_p2p.errors import PrimeError
from prime_p2p.network.frames import Message, Schema
from prime_p2p.network.node import Node
from prime_p2p.network.streams import Stream
from prime_p2p.outer.digest import PIECE, digest_of_pieces
from prime_p2p.outer.journal import Journal, JournalEntry
from prime_p2p.outer.state import OuterState

logger = logging.getLogger(__name__)

MAX_DESCRIPTION = 64 * 1024
MAX_HASHES = 64 * 2**20  # bytes of piece hashes in a snapshot: enough for 2**40 parameters
Digest = Annotated[bytes, Field(min_length=32, max_length=32)]
Count = Annotated[int, Field(ge=0, lt=2**63)]


class AskDescription(Message):
    """What must all peers of the run agree on?"""

    kind: ClassVar[str] = "ask_description"


class Description(Message):
    """The answer, as JSON in the payload."""

    kind: ClassVar[str] = "description"
    max_payload: ClassVar[int] = MAX_DESCRIPTION


class AskUpdates(Message):
    """I hold this state; which updates lead from it to yours?"""

    kind: ClassVar[str] = "ask_updates"
    step: Count
    digest: Digest


class Updates(Message):
    """So many updates follow; none where the journal does not lead from that state to ours."""

    kind: ClassVar[str] = "updates"
    count: Annotated[int, Field(ge=0, le=4096)]


class Update(Message):
    """One update; its scales and values follow as pieces."""

    kind: ClassVar[str] = "update"
    step: Count
    before: Digest
    after: Digest
    tokens: Count


class AskSnapshot(Message):
    """Send me your newest state."""

    kind: ClassVar[str] = "ask_snapshot"


class Snapshot(Message):
    """The state's numbers; the payload is the hash of every piece, and the pieces follow."""

    kind: ClassVar[str] = "snapshot"
    max_payload: ClassVar[int] = MAX_HASHES
    step: Count
    tokens: Count
    n: Count


class Piece(Message):
    """The next bytes of what was asked for."""

    kind: ClassVar[str] = "piece"
    max_payload: ClassVar[int] = PIECE


STATE = Schema(AskDescription, Description, AskUpdates, Updates, Update, AskSnapshot, Snapshot, Piece)


class TransferError(PrimeError):
    """A peer did not give what it was asked for."""


def protocol(run: str) -> str:
    return f"prime-p2p/1/{run}/state"


@dataclass(frozen=True)
class Source:
    """What a peer serves from: called anew for each request, since the state moves on. None: there is nothing yet."""

    state: Callable[[], OuterState | None]
    journal: Journal
    description: dict[str, Any]


class StateServer:
    """Serves our state to others. Reading and copying happen in threads; training waits for one copy at most."""

    def __init__(self, node: Node, run: str, source: Source, stall: float) -> None:
        self._node = node
        self._run = run
        self._source = source
        self._stall = stall
        self._copying = asyncio.Lock()
        self._copy: _Copy | None = None

    async def serve(self) -> None:
        await self._node.serve(protocol(self._run), STATE, self._answer)

    async def _answer(self, stream: Stream) -> None:
        request = await stream.receive(stall=self._stall)
        if isinstance(request, AskDescription):
            await stream.send(Description(), json.dumps(self._source.description).encode(), stall=self._stall)
        elif isinstance(request, AskUpdates):
            await self._send_updates(stream, request)
        elif isinstance(request, AskSnapshot):
            await self._send_snapshot(stream)

    async def _send_updates(self, stream: Stream, request: AskUpdates) -> None:
        journal = self._source.journal
        entries = await asyncio.to_thread(journal.path_from, request.step, request.digest)
        await stream.send(Updates(count=len(entries)), stall=self._stall)
        for entry in entries:
            _, update = await asyncio.to_thread(journal.read, entry.step_before)
            before, after = entry.digest_before, entry.digest_after
            head = Update(step=entry.step_before, before=before, after=after, tokens=entry.tokens)
            await stream.send(head, stall=self._stall)
            for buffer in update.buffers():
                await _send_pieces(stream, buffer, self._stall)

    async def _send_snapshot(self, stream: Stream) -> None:
        copy = await self._consistent_copy()
        if copy is None:
            return  # the stream closes, which says that there is nothing here
        copy.readers += 1
        try:
            head = Snapshot(step=copy.step, tokens=copy.tokens, n=len(copy.anchor))
            await stream.send(head, b"".join(copy.pieces), stall=self._stall)
            for array in (copy.anchor, copy.momentum):
                await _send_pieces(stream, array.view(np.uint8).data, self._stall)
        finally:
            copy.readers -= 1
            if copy.readers == 0 and self._copy is copy:
                self._copy = None

    async def _consistent_copy(self) -> _Copy | None:
        """Anchor and momentum of one outer step; readers of the same step share the copy, and the last one frees it."""
        async with self._copying:
            state = self._source.state()
            if state is None:
                return None
            if self._copy is None or (self._copy.step, self._copy.pieces) != (state.step, state.pieces):
                self._copy = await asyncio.to_thread(_copy_of, state)
            return self._copy


@dataclass
class _Copy:
    step: int
    tokens: int
    anchor: Float32
    momentum: Float32
    pieces: list[bytes]
    readers: int = 0


def _copy_of(state: OuterState) -> _Copy:
    with state.lock:
        return _Copy(state.step, state.tokens, state.anchor.copy(), state.momentum.copy(), list(state.pieces))


async def _send_pieces(stream: Stream, buffer: memoryview, stall: float) -> None:
    for start in range(0, len(buffer), PIECE):
        await stream.send(Piece(), buffer[start : start + PIECE], stall=stall)


async def _receive_pieces(stream: Stream, buffer: memoryview, stall: float) -> None:
    for start in range(0, len(buffer), PIECE):
        piece = buffer[start : start + PIECE]
        message = await stream.receive(stall=stall)
        if not isinstance(message, Piece) or stream.payload_left != len(piece):
            raise TransferError(f"{stream.peer_id} sent {message!r} of {stream.payload_left} bytes instead of a piece")
        await stream.receive_into(piece, stall=stall)


class StateClient:
    """Fetches state from other peers. ``stall`` is how many seconds a donor may stand still."""

    def __init__(self, node: Node, run: str, stall: float) -> None:
        self._node = node
        self._run = run
        self._stall = stall

    async def description(self, peer: str) -> dict[str, Any]:
        """What ``peer`` takes the run to be. Raises TransferError or StreamError."""
        stream = await self._ask(peer, AskDescription())
        try:
            await self._expect(stream, Description)
            return dict(json.loads(await stream.receive_payload(stall=self._stall)))
        except ValueError as error:
            raise TransferError(f"{peer} sent a description that is no JSON object: {error}") from error
        finally:
            stream.abort()

    async def updates(self, peer: str, state: OuterState, journal: Journal) -> list[JournalEntry]:
        """Fetch into our journal the updates that lead from our state to the peer's; returns them in order.

        Empty where the peer cannot lead us there. Raises TransferError or StreamError; what was complete then is kept.
        """
        stream = await self._ask(peer, AskUpdates(step=state.step, digest=state.digest))
        fetched: list[JournalEntry] = []
        try:
            count = (await self._expect(stream, Updates)).count
            if count > journal.length:
                return []  # a snapshot it is, then
            at = (state.step, state.digest)
            for _ in range(count):
                head = await self._expect(stream, Update)
                if (head.step, head.before) != at:
                    raise TransferError(f"{peer} sent an update that does not follow from outer step {at[0]}")
                update = BlockVector.empty(len(state.anchor))
                for buffer in update.buffers():
                    await _receive_pieces(stream, buffer, self._stall)
                update.check()
                entry = JournalEntry(head.step, head.before, head.after, head.tokens, update.n)
                await asyncio.to_thread(journal.append, entry, update)
                fetched.append(entry)
                at = (head.step + 1, head.after)
        finally:
            stream.abort()
        return fetched

    async def snapshot(self, peer: str, n: int, threads: int = 1) -> OuterState:
        """Fetch a peer's newest state, of n parameters. Raises TransferError or StreamError."""
        stream = await self._ask(peer, AskSnapshot())
        try:
            head = await self._expect(stream, Snapshot)
            if head.n != n:
                raise TransferError(f"{peer} has a state of {head.n} parameters, this model has {n}")
            hashes = await stream.receive_payload(stall=self._stall)
            pieces = [hashes[i : i + 32] for i in range(0, len(hashes), 32)]
            anchor, momentum = np.empty(n, np.float32), np.empty(n, np.float32)
            for array in (anchor, momentum):
                await _receive_pieces(stream, array.view(np.uint8).data, self._stall)
        finally:
            stream.abort()
        state = await asyncio.to_thread(OuterState, anchor, momentum, head.step, head.tokens, threads)
        if state.digest != digest_of_pieces(head.step, head.tokens, n, pieces):
            raise TransferError(f"{peer} sent a snapshot whose bytes are not those it named")
        return state

    async def _ask(self, peer: str, request: Message) -> Stream:
        stream = await self._node.open(peer, protocol(self._run), STATE, timeout=self._stall)
        try:
            await stream.send(request, stall=self._stall)
        except BaseException:
            stream.abort()
            raise
        return stream

    async def _expect(self, stream: Stream, kind: type[Any]) -> Any:
        message = await stream.receive(stall=self._stall)
        if not isinstance(message, kind):
            raise TransferError(f"{stream.peer_id} answered with {message!r}")
        return message


def description_hash(description: dict[str, Any]) -> bytes:
    """16 bytes that are equal where two descriptions are."""
    return blake3(json.dumps(description, sort_keys=True).encode()).digest(16)
