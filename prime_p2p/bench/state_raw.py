"""As many bytes as a snapshot has, over raw streams between the same processes: what the network alone takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from prime_p2p.network.frames import Message, Schema
from prime_p2p.network.node import Node
from prime_p2p.network.streams import Stream
from prime_p2p.outer.digest import PIECE
from prime_p2p.outer.state import OuterState

STALL = 30.0
BYTES_OF_PARAMETER = 8  # of the anchor and the momentum

_PROTOCOL = "benchmark/raw-state"


class _Bytes(Message):
    """Send me ``count`` bytes of the anchor and the momentum from ``start`` on, or any bytes where it is below 0."""

    kind: ClassVar[str] = "bytes"
    max_payload: ClassVar[int] = PIECE
    start: int = -1
    count: int = 0


_SCHEMA = Schema(_Bytes)


async def serve(node: Node, state: OuterState) -> None:
    """Give such bytes to whoever asks."""

    async def give(stream: Stream) -> None:
        asked = await stream.receive(stall=STALL)
        assert isinstance(asked, _Bytes)
        small = memoryview(np.random.default_rng(0).bytes(PIECE))
        sent = 0
        while sent < asked.count:
            count = min(PIECE, asked.count - sent)
            part = small[:count] if asked.start < 0 else _memory(state, asked.start + sent, count)
            await stream.send(_Bytes(), part, stall=STALL)
            sent += len(part)

    await node.serve(_PROTOCOL, _SCHEMA, give)


async def fetch(node: Node, peers: Sequence[str], n: int, into: OuterState | None) -> float:
    """Seconds for the bytes of n parameters, a part from each peer.

    They go from the peers' states ``into`` the memory of one, or from one small buffer into another. Raises StreamError
    and FrameError.
    """
    part = BYTES_OF_PARAMETER * n // len(peers)
    began = time.perf_counter()
    taking = [asyncio.ensure_future(_take(node, peer, i * part, part, into)) for i, peer in enumerate(peers)]
    try:
        await asyncio.gather(*taking)
    finally:
        for task in taking:
            task.cancel()
        await asyncio.gather(*taking, return_exceptions=True)
    return time.perf_counter() - began


async def _take(node: Node, peer: str, start: int, count: int, into: OuterState | None) -> None:
    stream = await node.open(peer, _PROTOCOL, _SCHEMA, STALL)
    small = memoryview(bytearray(PIECE))
    try:
        await stream.send(_Bytes(start=-1 if into is None else start, count=count), stall=STALL)
        end = start + count
        while start < end:
            await stream.receive(stall=STALL)
            length = stream.payload_left
            buffer = small[:length] if into is None else _memory(into, start, length)
            await stream.receive_into(buffer, stall=STALL)
            start += length
    finally:
        stream.abort()


def _memory(state: OuterState, start: int, count: int) -> memoryview:
    """Up to ``count`` bytes of a state, as if the momentum followed the anchor: as many as are in one of the two."""
    anchor, momentum = (array.view(np.uint8).data for array in (state.anchor, state.momentum))
    if start < len(anchor):
        return anchor[start : start + count]
    start -= len(anchor)
    return momentum[start : start + count]
