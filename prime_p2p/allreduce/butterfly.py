"""The butterfly all-reduce: every peer of a group reduces one part of the vector and gives it to all others.

Each peer streams the blocks of every other part to its owner, chunk by chunk, and then its own part, averaged, to
everybody. An owner adds up a chunk as soon as all contributors' bytes for it are there, always in the order of the
group, and quantises the mean once. The owner itself uses the bytes it sends, so all peers end with the same update,
byte for byte. Where much is to be sent, a peer has several streams to another one, its lanes, with every so many-th
chunk on each.

Contributions go first because they wait for nobody: when the last one has left, most of the averaged chunks are ready,
so a link is idle neither between the two halves nor, waiting for the last chunk to come back, at the end. What comes in
is read, whoever else is late: a stream that stood still for that would hold up the averaged chunks behind.

A peer uploads 2 * (G - 1) / G * P bytes for P parameters among G equal peers, or half as many with int4, plus one scale
for every 1024 and a few bytes a chunk. Beyond the update it holds the contributions to its part that wait for others':
a few chunks where all are equally fast, and never more than a vector's bytes, for which alone a stream is made to wait.

The scheme is reduce-scatter then all-gather (Rabenseifner, "Optimization of Collective Reduction Operations", 2004),
with the two phases overlapped; in parts among unequal volunteers: Ryabinin et al., "Moshpit SGD", 2021.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Annotated, Any, ClassVar

from pydantic import Field

from prime_p2p.allreduce import codec
from prime_p2p.allreduce import plan as plans
from prime_p2p.allreduce.codec import BLOCK, BlockVector
from prime_p2p.allreduce.mean import average
from prime_p2p.allreduce.plan import CHUNK_BLOCKS, MOST_LANES, Plan
from prime_p2p.errors import PrimeError
from prime_p2p.network import dropped
from prime_p2p.network.deadline import within
from prime_p2p.network.frames import FrameError, Message, Schema
from prime_p2p.network.streams import Stream, StreamError, StreamStalled

KEPT = 4
"""Chunks for each contributor whose memory is kept from one all-reduce to the next."""

PATIENCE = 4
"""How many times longer a stream may stand still where a third peer can be the cause: whoever sees the cause at first
hand gives up earlier and says so."""

CHUNK_BYTES = codec.wire_bytes(CHUNK_BLOCKS * BLOCK)

GroupId = Annotated[bytes, Field(min_length=32, max_length=32)]


class Hello(Message):
    """First on a data stream: the group whose bytes follow, and which of the sender's streams to the receiver it is."""

    kind: ClassVar[str] = "hello"
    group_id: GroupId
    lane: Annotated[int, Field(ge=0, lt=MOST_LANES)] = 0


class Contribution(Message):
    """Chunk ``index`` of the receiver's part, from the sender's pseudo-gradient."""

    kind: ClassVar[str] = "contribution"
    max_payload: ClassVar[int] = CHUNK_BYTES
    index: Annotated[int, Field(ge=0, lt=2**31)]


class Reduced(Message):
    """Chunk ``index`` of the sender's part, averaged."""

    kind: ClassVar[str] = "reduced"
    max_payload: ClassVar[int] = CHUNK_BYTES
    index: Annotated[int, Field(ge=0, lt=2**31)]


DATA = Schema(Hello, Contribution, Reduced)


class ReduceError(PrimeError):
    """The all-reduce did not complete; ``blamed`` are the peers whose streams failed."""

    def __init__(self, blamed: Iterable[str], reason: str) -> None:
        super().__init__(reason)
        self.blamed = frozenset(blamed)


@dataclass
class Traffic:
    """Bytes over the data streams of one reduce."""

    sent: int = 0
    received: int = 0


@dataclass(frozen=True)
class Setting:
    """What an exchange runs with: seconds a peer may stand still, one thread for kernels, what counts the bytes, and
    memory for chunks."""

    stall: float
    executor: Executor
    traffic: Traffic
    spare: SpareChunks


class Exchange:
    """One all-reduce of one group: the tasks that send, receive and add up, and the buffers they share.

    ``mine`` is this peer's pseudo-gradient, ``update`` the vector the result is written into; neither may be touched by
    anybody else until ``run`` has returned or raised.
    """

    def __init__(self, plan: Plan, mine: BlockVector, update: BlockVector, setting: Setting) -> None:
        self.plan = plan
        self._traffic = setting.traffic
        self._mine = mine
        self._update = update
        self._stall = setting.stall
        self._executor = setting.executor
        self._own_chunks = plan.chunks(plan.me)
        self._reduced = 0  # chunks of our own part that are averaged
        self._reduced_more = asyncio.Condition()
        senders = [peer for peer in plan.contributors if peer != plan.me]
        loop = asyncio.get_running_loop()
        self._inbox = {peer: [_future(loop) for _ in self._own_chunks] for peer in senders}
        self._spare = setting.spare
        self._lanes_to = {(peer, lane) for peer in plan.others for lane in range(plan.lanes(plan.me, peer))}
        lanes_from = {(peer, lane) for peer in plan.others for lane in range(plan.lanes(peer, plan.me))}
        self._incoming: dict[tuple[str, int], asyncio.Future[Stream]] = {
            key: loop.create_future() for key in lanes_from
        }
        self._moves, self._all_moves = {peer: _Moves() for peer in plan.others}, _Moves()
        # Among equal parts no contribution is ever held back; a peer that owns most of the vector keeps its memory.
        self._window = max(KEPT, plan.count_chunks() // max(1, len(senders)))

    def accept(self, stream: Stream, lane: int) -> bool:
        """Take a data stream that said hello for this group; False for one that nobody waits for."""
        incoming = self._incoming.get((stream.peer_id, lane))
        if incoming is None or incoming.done():
            return False
        incoming.set_result(stream)
        return True

    async def run(self, open_stream: Callable[[str], Awaitable[Stream]]) -> bytes:
        """Reduce; returns the digest of the update (32 bytes). Raises ReduceError with the peers that failed.

        However it ends, no task of it is left, and the streams it opened are closed.
        """
        work: list[Coroutine[Any, Any, None]] = [self._add_up()]
        work += [self._send_to(*key, open_stream) for key in sorted(self._lanes_to)]
        work += [self._receive_from(*key) for key in sorted(self._incoming)]
        tasks = [asyncio.create_task(coroutine) for coroutine in work]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            errors = [task.exception() for task in tasks if task.done() and not task.cancelled()]
        finally:
            for task in tasks:
                task.cancel()
            self._spare.keep(KEPT * len(self._inbox))
            await asyncio.gather(*tasks, return_exceptions=True)
            for incoming in self._incoming.values():
                incoming.cancel()
            # A kernel goes on when its task is cancelled: the buffers are free once the executor is.
            await asyncio.get_running_loop().run_in_executor(self._executor, _nothing)
        self._raise(error for error in errors if error is not None)
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._update.digest)

    @staticmethod
    def _raise(errors: Iterable[BaseException]) -> None:
        blamed: dict[str, str] = {}
        for error in errors:
            if isinstance(error, PeerFault):
                dropped.note("chunk", error, error.peer_id)
            if isinstance(error, (StreamError, PeerFault)):
                blamed.setdefault(error.peer_id, str(error))
            else:
                raise error
        if blamed:
            raise ReduceError(blamed, "; ".join(sorted(blamed.values())))

    # ---- sending

    async def _send_to(self, peer: str, lane: int, open_stream: Callable[[str], Awaitable[Stream]]) -> None:
        """Send one peer its chunks of our pseudo-gradient, then our averaged chunks: those that go on this lane.

        Who owns most of the vector reads no faster than the slowest contributor sends, so a blocked send alone says
        little.
        """
        stall = PATIENCE * self._stall
        stream = await open_stream(peer)
        try:
            await stream.send(Hello(group_id=self.plan.group_id, lane=lane), stall=stall)
            lanes = self.plan.lanes(self.plan.me, peer)
            to_give = self.plan.chunks(peer) if self.plan.me in self.plan.contributors else []
            for index, blocks in _on_lane(to_give, lane, lanes):
                chunk = self._mine.slice(*blocks)
                await stream.send(Contribution(index=index), *chunk.buffers(), stall=stall)
            for index, blocks in _on_lane(self._own_chunks, lane, lanes):
                await self._reduced_beyond(index)
                chunk = self._update.slice(*blocks)
                await stream.send(Reduced(index=index), *chunk.buffers(), stall=stall)
            stream.close()
        except BaseException:
            stream.abort()
            raise
        finally:
            self._traffic.sent += stream.bytes_sent

    async def _reduced_beyond(self, count: int) -> None:
        async with self._reduced_more:
            await self._reduced_more.wait_for(lambda: self._reduced > count)

    # ---- receiving

    async def _receive_from(self, peer: str, lane: int) -> None:
        """Take one peer's contributions to our part, and its averaged chunks: those that come on this lane.

        Its contributions depend on nobody else, so where none of its streams moves, that peer failed. Its averaged
        chunks may wait for a third peer, which others notice first: they get PATIENCE times as long, and longer while
        anything comes from anybody.
        """
        try:
            stream = await within(self._stall, asyncio.shield(self._incoming[peer, lane]))
        except asyncio.TimeoutError:
            raise StreamStalled(peer, f"no data stream from {peer} for {self._stall:g} s") from None
        moves = self._moves[peer]
        moves.streams.append(stream)
        self._all_moves.streams.append(stream)
        try:
            lanes = self.plan.lanes(peer, self.plan.me)
            for index, blocks in _on_lane(self._own_chunks if peer in self._inbox else [], lane, lanes):
                if index >= self._window:
                    await self._reduced_beyond(index - self._window)
                await self._expect(stream, Contribution(index=index), self._stall, moves)
                chunk = self._spare.take(self._mine.slice(*blocks).n, self._mine.bits)
                await self._take_chunk(stream, chunk)
                self._inbox[peer][index].set_result(chunk)
            for index, blocks in _on_lane(self.plan.chunks(peer), lane, lanes):
                await self._expect(stream, Reduced(index=index), PATIENCE * self._stall, self._all_moves)
                await self._take_chunk(stream, self._update.slice(*blocks))
        except FrameError as error:
            raise PeerFault(peer, f"{peer} sent bytes that are no frame: {error}") from error
        finally:
            self._traffic.received += stream.bytes_received

    async def _expect(self, stream: Stream, wanted: Contribution | Reduced, stall: float, moves: _Moves) -> None:
        """Receive this message, or raise where nothing at all has moved for ``stall`` seconds."""
        while True:
            try:
                await stream.begins(stall=stall / _LOOKS)
                break
            except StreamStalled:
                if moves.silence() >= stall:
                    raise StreamStalled(stream.peer_id, f"{stream.peer_id} sent nothing for {stall:g} s") from None
        message = await stream.receive(stall=self._stall)
        if message != wanted:
            raise PeerFault(stream.peer_id, f"{stream.peer_id} sent {message!r} where {wanted!r} is due")

    async def _take_chunk(self, stream: Stream, chunk: BlockVector) -> None:
        if stream.payload_left != chunk.nbytes:
            raise PeerFault(stream.peer_id, f"{stream.peer_id} sent {stream.payload_left} bytes for {chunk.nbytes}")
        for buffer in chunk.buffers():
            await stream.receive_into(buffer, stall=self._stall)
        try:
            chunk.check()
        except codec.NonFinite as error:
            raise PeerFault(stream.peer_id, f"{stream.peer_id} sent a chunk that is not finite") from error

    # ---- adding up

    async def _add_up(self) -> None:
        """Average our own part, chunk by chunk, in the order of the group."""
        loop = asyncio.get_running_loop()
        coefficients = [self.plan.coefficient(peer) for peer in self.plan.contributors]
        for index, blocks in enumerate(self._own_chunks):
            chunks = []
            for peer in self.plan.contributors:
                own = peer == self.plan.me
                chunks.append(self._mine.slice(*blocks) if own else await self._inbox[peer][index])
            out = self._update.slice(*blocks)
            await loop.run_in_executor(self._executor, partial(average, chunks, coefficients, out))
            for peer, chunk in zip(self.plan.contributors, chunks, strict=True):
                if peer != self.plan.me:
                    self._spare.give_back(chunk)
            async with self._reduced_more:
                self._reduced += 1
                self._reduced_more.notify_all()


_LOOKS = 4  # looks at the other streams within the time that nothing may move


class _Moves:
    """When the last byte came on any of some streams: lanes share a connection, and one may stand while others move."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self._bytes = 0
        self._at = time.monotonic()

    def silence(self) -> float:
        """Seconds since a look at which more had come than at the one before."""
        now, received = time.monotonic(), sum(stream.bytes_received for stream in self.streams)
        if received > self._bytes:
            self._bytes, self._at = received, now
        return now - self._at


def _nothing() -> None:
    return None


def _future(loop: asyncio.AbstractEventLoop) -> asyncio.Future[BlockVector]:
    return loop.create_future()


def _on_lane(chunks: Sequence[tuple[int, int]], lane: int, lanes: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Every so many-th chunk, with its index."""
    return islice(enumerate(chunks), lane, None, lanes)


class PeerFault(PrimeError):
    """A peer of the group sent something it should not have."""

    def __init__(self, peer_id: str, reason: str) -> None:
        super().__init__(reason)
        self.peer_id = peer_id


class SpareChunks:
    """Memory for chunks on their way into a sum, used again and again: fresh memory is slow."""

    def __init__(self) -> None:
        self._free: list[BlockVector] = []

    def take(self, n: int, bits: int) -> BlockVector:
        """A chunk of n elements; what is in it is to be overwritten."""
        if self._free and (self._free[-1].n, self._free[-1].bits) == (n, bits):
            return self._free.pop()
        return BlockVector.empty(n, bits)

    def give_back(self, chunk: BlockVector) -> None:
        """Nobody uses it any more."""
        if chunk.n == plans.CHUNK_BLOCKS * BLOCK:  # only the last chunk of a part is shorter
            self._free.append(chunk)

    def keep(self, count: int) -> None:
        """Let go of all but so many."""
        del self._free[count:]
