"""Where data streams meet their all-reduce: a peer serves one protocol for all groups it will ever be in."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from prime_p2p.allreduce.butterfly import DATA, Exchange, Hello, Setting, SpareChunks, Traffic
from prime_p2p.allreduce.codec import BlockVector
from prime_p2p.allreduce.plan import Plan
from prime_p2p.network import dropped, tasks
from prime_p2p.network.node import Node
from prime_p2p.network.streams import Stream
from prime_p2p.network.version import stream_name

_WAITING = 2  # streams of one lane that wait for their groups: one of a group that came to nothing may come late


class Exchanges:
    """The all-reduces of one peer in one run. ``stall`` is how many seconds a peer may stand still."""

    def __init__(self, node: Node, run: str, stall: float) -> None:
        self._node = node
        self._protocol = stream_name(run, "data")
        self._stall = stall
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="allreduce")
        self._spare = SpareChunks()
        self._running: dict[bytes, Exchange] = {}
        self._over: dict[bytes, asyncio.Event] = {}
        self._started = asyncio.Condition()
        self._waiting: dict[tuple[str, int], list[Stream]] = {}  # by peer and lane: those whose group has not begun

    async def serve(self) -> None:
        """Take data streams from now on."""
        await self._node.serve(self._protocol, DATA, self._incoming)

    def close(self) -> None:
        """End the kernel thread; no reduce may be running."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def reduce(self, plan: Plan, mine: BlockVector, update: BlockVector, traffic: Traffic) -> bytes:
        """Average ``mine`` with the group into ``update``; returns the update's digest and adds to ``traffic``.

        Raises ReduceError, see ``Exchange.run``.
        """
        exchange = Exchange(plan, mine, update, Setting(self._stall, self._executor, traffic, self._spare))
        over = asyncio.Event()
        self._running[plan.group_id] = exchange
        self._over[plan.group_id] = over
        async with self._started:
            self._started.notify_all()
        try:
            return await exchange.run(self._open)
        finally:
            del self._running[plan.group_id], self._over[plan.group_id]
            over.set()

    async def _open(self, peer: str) -> Stream:
        return await self._node.open(peer, self._protocol, DATA, timeout=self._stall)

    async def _incoming(self, stream: Stream) -> None:
        """A stream says which group it is for; that group may begin here a moment later than at the sender."""
        hello = await stream.receive(stall=self._stall)
        if not isinstance(hello, Hello):
            dropped.note("stream", "it does not say which group it is for", stream.peer_id)
            return
        if not await self._begins(hello, stream):
            return
        exchange, over = self._running.get(hello.group_id), self._over.get(hello.group_id)
        if (
            exchange is not None and over is not None and exchange.accept(stream, hello.lane)
        ):  # it may be over in the meantime
            await over.wait()

    async def _begins(self, hello: Hello, stream: Stream) -> bool:
        """Wait for the group of a stream to begin. No longer than for its sender to leave, or to come with another
        group: a peer is in one at a time, and what it has left behind must not use up the streams that it may have."""
        key = stream.peer_id, hello.lane
        waiting = self._waiting.setdefault(key, [])
        waiting.append(stream)
        if len(waiting) > _WAITING:
            waiting[0].abort()
        begun = asyncio.ensure_future(self._begun(hello.group_id))
        gone = asyncio.ensure_future(stream.ended())
        try:
            await asyncio.wait({begun, gone}, timeout=self._stall, return_when=asyncio.FIRST_COMPLETED)
            if not begun.done() and not gone.done():
                dropped.note("hello", "its group has not begun here", stream.peer_id)
            return begun.done()
        finally:
            waiting.remove(stream)
            if not waiting:
                self._waiting.pop(key, None)
            await tasks.end([begun, gone])

    async def _begun(self, group_id: bytes) -> None:
        async with self._started:
            await self._started.wait_for(lambda: group_id in self._running)
