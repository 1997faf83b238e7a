"""The butterfly all-reduce: every peer of a group reduces one part of the vector and gives it to all others.

Each peer streams the blocks of every other part to its owner, chunk by chunk. An owner adds up a chunk as soon as
all contributors' bytes for it are there, always in the order of the group, quantises the mean once, and streams that
back while later chunks still come in, so both directions stay full. The owner itself uses the bytes it sends, so all
peers end with the same update, byte for byte.

A peer uploads 2 * (G - 1) / G * P bytes for P parameters among G equal peers, or half as many with int4, plus one scale
for every 1024 and a few bytes a chunk. Beyond the update it holds at most ``WINDOW`` chunks of each contributor.

The scheme is reduce-scatter then all-gather (Rabenseifner, "Optimization of Collective Reduction Operations", 2004),
with the two phases overlapped chunk by chunk; in parts among unequal volunteers: Ryabinin et al., "Moshpit SGD", 2021.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from prime_p2p.allreduce import codec
from prime_p2p.allreduce.codec import BLOCK, BlockVector
from prime_p2p.errors import PrimeError
from prime_p2p.network.deadline import within
from prime_p2p.network.frames import FrameError, Message, Schema
from prime_p2p.network.streams import Stream, StreamError, StreamStalled

CHUNK_BLOCKS = 512
"""Blocks in a chunk: half a megabyte, so that a part of a small model is one chunk and framing costs nothing."""

WINDOW = 4
"""Chunks of one contributor that may wait for the others' before its stream is read no further."""

PATIENCE = 4
"""How many times longer a stream may stand still where a third peer can be the cause: whoever sees the cause at first
hand gives up earlier and says so."""

CHUNK_BYTES = codec.wire_bytes(CHUNK_BLOCKS * BLOCK)

GroupId = Annotated[bytes, Field(min_length=32, max_length=32)]


class Hello(Message):
    """First on a data stream: the group whose bytes follow."""

    kind: ClassVar[str] = "hello"
    group_id: GroupId


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


@dataclass(frozen=True)
class Plan:
    """Who reduces what: the same on every peer of the group but for ``me``.

    ``part_blocks[i]`` blocks belong to ``peer_ids[i]``, in order; ``weights`` are the integers the mean is taken with.
    """

    group_id: bytes
    peer_ids: Sequence[str]
    weights: Sequence[int]
    part_blocks: Sequence[int]
    me: str

    def chunks(self, peer_id: str) -> list[tuple[int, int]]:
        """The chunks of a peer's part as (first block, last block + 1) of the whole vector."""
        owner = self.peer_ids.index(peer_id)
        start = sum(self.part_blocks[:owner])
        stop = start + self.part_blocks[owner]
        return [(block, min(block + CHUNK_BLOCKS, stop)) for block in range(start, stop, CHUNK_BLOCKS)]

    @property
    def others(self) -> list[str]:
        return [peer for peer in self.peer_ids if peer != self.me]

    @property
    def contributors(self) -> list[str]:
        """The peers that have trained, in the order of the group. The others send nothing and are not in the mean."""
        return [peer for peer, weight in zip(self.peer_ids, self.weights, strict=True) if weight > 0]

    def coefficient(self, peer_id: str) -> float:
        return self.weights[self.peer_ids.index(peer_id)] / sum(self.weights)


@dataclass
class Traffic:
    """Bytes over the data streams of one reduce."""

    sent: int = 0
    received: int = 0


@dataclass(frozen=True)
class Setting:
    """What an exchange runs with: seconds a peer may stand still, one thread for kernels, and what counts the bytes."""

    stall: float
    executor: Executor
    traffic: Traffic


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
        self._inbox = {peer: Inbox(mine.bits) for peer in senders}
        loop = asyncio.get_running_loop()
        self._incoming: dict[str, asyncio.Future[Stream]] = {peer: loop.create_future() for peer in plan.others}

    def accept(self, stream: Stream) -> bool:
        """Take a data stream that said hello for this group; False for a stranger's, or a second one of a peer."""
        incoming = self._incoming.get(stream.peer_id)
        if incoming is None or incoming.done():
            return False
        incoming.set_result(stream)
        return True

    async def run(self, open_stream: Callable[[str], Awaitable[Stream]]) -> bytes:
        """Reduce; returns the digest of the update (32 bytes). Raises ReduceError with the peers that failed.

        However it ends, no task of it is left, and the streams it opened are closed.
        """
        work: list[Coroutine[Any, Any, None]] = [self._add_up()]
        work += [self._send_to(peer, open_stream) for peer in self.plan.others]
        work += [self._receive_from(peer) for peer in self.plan.others]
        tasks = [asyncio.create_task(coroutine) for coroutine in work]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            errors = [task.exception() for task in tasks if task.done() and not task.cancelled()]
        finally:
            for task in tasks:
                task.cancel()
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
            if isinstance(error, (StreamError, PeerFault)):
                blamed.setdefault(error.peer_id, str(error))
            else:
                raise error
        if blamed:
            raise ReduceError(blamed, "; ".join(sorted(blamed.values())))

    # ---- sending

    async def _send_to(self, peer: str, open_stream: Callable[[str], Awaitable[Stream]]) -> None:
        """Send one peer its chunks of our pseudo-gradient, and our averaged chunks as they get ready.

        A receiver reads no faster than the slowest contributor sends, so a blocked send alone says little.
        """
        stall = PATIENCE * self._stall
        stream = await open_stream(peer)
        try:
            await stream.send(Hello(group_id=self.plan.group_id), stall=stall)
            to_give = self.plan.chunks(peer) if self.plan.me in self.plan.contributors else []
            given = returned = 0
            while given < len(to_give) or returned < len(self._own_chunks):
                if returned < self._reduced:
                    chunk = self._update.slice(*self._own_chunks[returned])
                    await stream.send(Reduced(index=returned), *chunk.buffers(), stall=stall)
                    returned += 1
                elif given < len(to_give):
                    chunk = self._mine.slice(*to_give[given])
                    await stream.send(Contribution(index=given), *chunk.buffers(), stall=stall)
                    given += 1
                else:
                    await self._reduced_beyond(returned)
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

    async def _receive_from(self, peer: str) -> None:
        """Take one peer's contributions to our part, and its averaged chunks.

        Its contributions depend on nobody else, so where they do not move, that peer failed. Its averaged chunks may
        wait for a third peer, which others notice first: they get PATIENCE times as long.
        """
        try:
            stream = await within(self._stall, asyncio.shield(self._incoming[peer]))
        except asyncio.TimeoutError:
            raise StreamStalled(peer, f"no data stream from {peer} for {self._stall:g} s") from None
        theirs = self.plan.chunks(peer)
        contributions = len(self._own_chunks) if peer in self._inbox else 0
        taken = returned = 0
        try:
            while taken < contributions or returned < len(theirs):
                stall = self._stall if taken < contributions else PATIENCE * self._stall
                message = await stream.receive(stall=stall)
                if isinstance(message, Contribution) and message.index == taken < contributions:
                    await self._take_contribution(stream, self._own_chunks[taken])
                    taken += 1
                elif isinstance(message, Reduced) and message.index == returned < len(theirs):
                    await self._take_chunk(stream, self._update.slice(*theirs[returned]))
                    returned += 1
                else:
                    raise PeerFault(peer, f"{peer} sent {message!r} out of order")
        except FrameError as error:
            raise PeerFault(peer, f"{peer} sent bytes that are no frame: {error}") from error
        finally:
            self._traffic.received += stream.bytes_received

    async def _take_contribution(self, stream: Stream, blocks: tuple[int, int]) -> None:
        inbox = self._inbox[stream.peer_id]
        chunk = await inbox.free_chunk(self._mine.slice(*blocks).n)
        await self._take_chunk(stream, chunk)
        inbox.filled.put_nowait(chunk)

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
        size = max((self._mine.slice(*blocks).n for blocks in self._own_chunks), default=0)
        mean = np.empty(size, np.float32)
        scratch = np.empty(min(codec.CHUNK, size), np.float32)
        for blocks in self._own_chunks:
            chunks = []
            for peer in self.plan.contributors:
                own = peer == self.plan.me
                chunks.append(self._mine.slice(*blocks) if own else await self._inbox[peer].filled.get())
            out = self._update.slice(*blocks)
            await loop.run_in_executor(self._executor, partial(self._average, chunks, out, mean[: out.n], scratch))
            for peer, chunk in zip(self.plan.contributors, chunks, strict=True):
                if peer != self.plan.me:
                    self._inbox[peer].give_back(chunk)
            async with self._reduced_more:
                self._reduced += 1
                self._reduced_more.notify_all()

    def _average(
        self, chunks: list[BlockVector], out: BlockVector, mean: codec.Float32, scratch: codec.Float32
    ) -> None:
        if len(chunks) == 1:  # a mean of one: its bytes, not a second rounding of them
            np.copyto(out.values, chunks[0].values)
            np.copyto(out.scales, chunks[0].scales)
            return
        for index, (peer, chunk) in enumerate(zip(self.plan.contributors, chunks, strict=True)):
            codec.accumulate(mean, chunk, self.plan.coefficient(peer), first=index == 0, scratch=scratch)
        codec.quantise(mean, out)


def _nothing() -> None:
    return None


class PeerFault(PrimeError):
    """A peer of the group sent something it should not have."""

    def __init__(self, peer_id: str, reason: str) -> None:
        super().__init__(reason)
        self.peer_id = peer_id


@dataclass
class Inbox:
    """Chunks of one contributor between its stream and the sum: at most WINDOW, used again and again."""

    bits: int  # of the vectors
    filled: asyncio.Queue[BlockVector] = field(default_factory=asyncio.Queue)
    _free: asyncio.Queue[BlockVector] = field(default_factory=asyncio.Queue)
    _made: int = 0

    async def free_chunk(self, n: int) -> BlockVector:
        if self._free.empty() and self._made < WINDOW:
            self._made += 1
            return BlockVector.empty(n, self.bits)
        chunk = await self._free.get()
        return chunk if chunk.n == n else BlockVector.empty(n, self.bits)  # only the last chunk of a part is shorter

    def give_back(self, chunk: BlockVector) -> None:
        self._free.put_nowait(chunk)
