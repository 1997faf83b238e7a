"""Asking others for state: one update, the list of a snapshot's pieces, the pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from prime_p2p.allreduce.codec import BlockVector, NonFinite
from prime_p2p.network.frames import Message
from prime_p2p.network.node import Node
from prime_p2p.network.streams import Stream
from prime_p2p.outer.journal import JournalEntry
from prime_p2p.state.messages import (
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
    TransferError,
    Update,
    WrongBytes,
    protocol,
    read_description,
)
from prime_p2p.state.piece_file import Contents, pieces_of


class Lacking(TransferError):
    """A peer does not have what it was asked for, or does not give it just now: no fault of its own."""


class Occupied(Lacking):
    """A peer serves as many others as it may."""


class StateClient:
    """Fetches state from other peers. ``stall`` is how many seconds a donor may stand still.

    What is asked for and does not come ends in TransferError, StreamError or FrameError; WrongBytes (one of the first)
    says that the peer gave something that it should not have, Lacking that it has done nothing wrong.
    """

    def __init__(self, node: Node, run: str, stall: float) -> None:
        self._node = node
        self._run = run
        self.stall = stall
        self.bytes_received = 0

    async def description(self, peer: str) -> dict[str, Any]:
        """What ``peer`` takes the run to be."""
        stream = await self._ask(peer, AskDescription())
        try:
            await self._expect(stream, Description)
            return read_description(peer, await stream.receive_payload(stall=self.stall))
        finally:
            self._end(stream)

    async def update(self, peer: str, step: int, digest: bytes, n: int) -> tuple[JournalEntry, BlockVector, int]:
        """The update that leads on from this state, as ``peer`` has it, and how many there are from there on.

        Only applying it can show whether it leads where the peer says.
        """
        stream = await self._ask(peer, AskUpdate(step=step, digest=digest))
        try:
            head: Update = await self._expect(stream, Update)
            if (head.step, head.before) != (step, digest):
                raise WrongBytes(f"{peer} sent an update that does not follow from outer step {step}")
            update = BlockVector.empty(n, head.bits)
            for buffer in update.buffers():
                await self._receive_parts(stream, buffer)
            await asyncio.to_thread(update.check)
        except NonFinite as error:
            raise WrongBytes(f"{peer} sent an update that nobody can have made: {error}") from None
        finally:
            self._end(stream)
        entry = JournalEntry(head.step, head.before, head.after, head.tokens, n, head.bits)
        return entry, update, head.ahead

    async def offers(self, peer: str) -> Offers:
        """Which snapshots ``peer`` gives, and which states it knows."""
        stream = await self._ask(peer, AskOffers())
        try:
            answer: Offers = await self._expect(stream, Offers)
            return answer
        finally:
            self._end(stream)

    async def contents(self, peer: str, digest: bytes, n: int) -> Contents:
        """What the state of this digest, of n parameters, is made of; checked against the digest."""
        stream = await self._ask(peer, AskHashes(digest=digest))
        try:
            head: Hashes = await self._expect(stream, Hashes)
            if head.n != n:
                raise WrongBytes(f"{peer} has a state of {head.n} parameters, this model has {n}")
            if stream.payload_left != pieces_of(n) * 32:
                raise WrongBytes(f"{peer} has {stream.payload_left} bytes of hashes for a state of {n} parameters")
            listed = await stream.receive_payload(stall=self.stall)
        finally:
            self._end(stream)
        contents = Contents(head.step, head.tokens, n, [listed[i : i + 32] for i in range(0, len(listed), 32)])
        if not contents.fits or contents.digest != digest:
            raise WrongBytes(f"{peer} sent a list of pieces that is not that of the state it was asked for")
        return contents

    async def session(self, peer: str, digest: bytes, count: int) -> Session:
        """Begin to fetch pieces of a state, of ``count`` in all; the session is the caller's to end."""
        stream = await self._ask(peer, AskHave(digest=digest))
        session = Session(self, stream, digest, count)
        try:
            await session.receive_have()
        except BaseException:
            session.end()
            raise
        return session

    async def _ask(self, peer: str, request: Message) -> Stream:
        stream = await self._node.open(peer, protocol(self._run), STATE, timeout=self.stall)
        try:
            await stream.send(request, stall=self.stall)
        except BaseException:
            stream.abort()
            raise
        return stream

    def _end(self, stream: Stream) -> None:
        self.bytes_received += stream.bytes_received
        stream.abort()

    async def _expect(self, stream: Stream, kind: type[Any]) -> Any:
        message = await stream.receive(stall=self.stall)
        if isinstance(message, NotHere):
            raise Lacking(f"{stream.peer_id} does not have it")
        if isinstance(message, Busy):
            raise Occupied(f"{stream.peer_id} serves others")
        if not isinstance(message, kind):
            raise WrongBytes(f"{stream.peer_id} answered with {message.kind!r}")
        return message

    async def _receive_parts(self, stream: Stream, buffer: memoryview) -> None:
        while buffer:
            await self._expect(stream, Part)
            if not 0 < (count := stream.payload_left) <= len(buffer):
                raise WrongBytes(f"{stream.peer_id} sent {count} bytes where at most {len(buffer)} were to come")
            await stream.receive_into(buffer[:count], stall=self.stall)
            buffer = buffer[count:]


class Session:
    """A stream on which one peer gives pieces of one state; ``have`` are those it can give."""

    def __init__(self, client: StateClient, stream: Stream, digest: bytes, count: int) -> None:
        self._client = client
        self._stream = stream
        self._digest = digest
        self._count = count
        self.have: set[int] = set()

    @property
    def whole(self) -> bool:
        """Whether the peer has all pieces."""
        return len(self.have) == self._count

    async def refresh(self) -> None:
        """Ask anew for ``have``; nothing else may be on its way."""
        await self._stream.send(AskHave(digest=self._digest), stall=self._client.stall)
        await self.receive_have()

    async def receive_have(self) -> None:
        await self._client._expect(self._stream, Have)
        length = self._stream.payload_left
        if length not in (0, -(-self._count // 8)):
            raise WrongBytes(f"{self._stream.peer_id} says what it has in {length} bytes, for {self._count} pieces")
        bits = await self._stream.receive_payload(stall=self._client.stall)
        self.have = _set_bits(bits, self._count) if bits else set(range(self._count))

    async def ask(self, index: int) -> None:
        """Ask for a piece, which comes after those that were asked for earlier."""
        await self._stream.send(AskPiece(index=index), stall=self._client.stall)

    async def receive(self, piece: memoryview) -> None:
        """Fill ``piece`` with the next one."""
        await self._client._receive_parts(self._stream, piece)

    def end(self) -> None:
        self._client._end(self._stream)


def _set_bits(bits: bytes, count: int) -> set[int]:
    indices: Sequence[int] = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), count=count)).tolist()
    return set(indices)
