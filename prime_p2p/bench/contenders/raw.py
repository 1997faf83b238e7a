"""The raw floor: as many bytes as ours, over as many encrypted streams, and no work on them."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import numpy as np

from prime_p2p.allreduce.butterfly import CHUNK_BYTES
from prime_p2p.allreduce.codec import BITS, BLOCK, Float32, wire_bytes
from prime_p2p.bench.contenders.base import Options
from prime_p2p.bench.contenders.network import ROUND_WITHIN, STALL, NodeOfTeam, plan_of
from prime_p2p.network.frames import Message, Schema
from prime_p2p.network.streams import Stream

_PROTOCOL = "benchmark/raw"


class Bytes(Message):
    """Bytes that mean nothing; the first ones on a stream say which one it is."""

    kind: ClassVar[str] = "bytes"
    max_payload: ClassVar[int] = CHUNK_BYTES
    lane: int = 0


_SCHEMA = Schema(Bytes)


class Raw:
    """One peer that sends every other as much as in an all-reduce, from one buffer, and reads as much into another.

    The streams are there before the first round.
    """

    def __init__(self, options: Options, mine: Float32) -> None:
        self._options = options
        self._network = NodeOfTeam(options)
        self._outgoing: dict[tuple[str, int], Stream] = {}
        self._incoming: dict[tuple[str, int], Stream] = {}
        self._arrived = asyncio.Condition()
        self._over = asyncio.Event()
        self._buffer = memoryview(np.random.default_rng(options.rank).bytes(CHUNK_BYTES))

    def ready(self) -> dict[str, Any]:
        self._network.loop.run(self._network.node.serve(_PROTOCOL, _SCHEMA, self._take), 10)
        return self._network.card

    def meet(self, team: list[dict[str, Any]]) -> None:
        self._plan = plan_of(self._options, [member["peer"] for member in team], self._me)
        self._network.loop.run(self._connect(), 60)

    @property
    def _me(self) -> str:
        return self._network.node.peer_id

    async def _connect(self) -> None:
        for peer in self._plan.others:
            for lane in range(self._plan.lanes(self._me, peer)):
                stream = await self._network.node.open(peer, _PROTOCOL, _SCHEMA, STALL)
                await stream.send(Bytes(lane=lane), stall=STALL)
                self._outgoing[peer, lane] = stream
        expected = sum(self._plan.lanes(peer, self._me) for peer in self._plan.others)
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self._incoming) == expected)

    async def _take(self, stream: Stream) -> None:
        first = await stream.receive(stall=STALL)
        assert isinstance(first, Bytes)
        self._incoming[stream.peer_id, first.lane] = stream
        async with self._arrived:
            self._arrived.notify_all()
        await self._over.wait()

    def prepare(self, number: int) -> None:
        pass

    def round(self) -> dict[str, float]:
        return {"sent": self._network.loop.run(self._exchange(), ROUND_WITHIN)}

    async def _exchange(self) -> int:
        before = sum(stream.bytes_sent for stream in self._outgoing.values())
        sending = [self._send(stream, peer, lane) for (peer, lane), stream in self._outgoing.items()]
        receiving = [self._receive(stream, peer, lane) for (peer, lane), stream in self._incoming.items()]
        await asyncio.gather(*sending, *receiving)
        return sum(stream.bytes_sent for stream in self._outgoing.values()) - before

    async def _send(self, stream: Stream, peer: str, lane: int) -> None:
        for length in self._lengths(self._me, peer, lane):
            await stream.send(Bytes(), self._buffer[:length], stall=STALL)

    async def _receive(self, stream: Stream, peer: str, lane: int) -> None:
        buffer = memoryview(bytearray(CHUNK_BYTES))
        for _ in self._lengths(peer, self._me, lane):
            await stream.receive(stall=STALL)
            await stream.receive_into(buffer[: stream.payload_left], stall=STALL)

    def _lengths(self, sender: str, receiver: str, lane: int) -> list[int]:
        """Bytes of the chunks that go on this lane."""
        bits, lanes = BITS[self._options.codec], self._plan.lanes(sender, receiver)
        chunks = self._plan.chunks(receiver)[lane::lanes] + self._plan.chunks(sender)[lane::lanes]
        elements = [min(stop * BLOCK, self._options.params) - start * BLOCK for start, stop in chunks]
        return [wire_bytes(n, bits) for n in elements]

    def result(self) -> None:
        return None

    def close(self) -> None:
        self._network.loop.run(self._end(), 10)
        self._network.close()

    async def _end(self) -> None:
        for stream in self._outgoing.values():
            stream.abort()
        self._over.set()
