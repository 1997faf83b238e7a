"""Two ends of a connection, for tests of what goes over it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

import msgpack

from prime_p2p.network.frames import Message, Schema
from prime_p2p.network.streams import Stream, stream_over

LONG = 60.0  # seconds: no stall that a test is about

Test = Callable[[], Coroutine[Any, Any, None]]
OnLoop = Callable[[Test], None]


class Chunk(Message):
    kind: ClassVar[str] = "chunk"
    max_payload: ClassVar[int] = 64 << 20
    index: int = 0


class Note(Message):
    kind: ClassVar[str] = "note"
    text: str


SCHEMA = Schema(Chunk, Note)


async def pair() -> tuple[Stream, Stream]:
    """Two ends of one connection; each knows the other by its name."""
    here, there = socket.socketpair()
    return await stream_over(here, "there", SCHEMA), await stream_over(there, "here", SCHEMA)


async def half() -> tuple[socket.socket, Stream]:
    """A raw socket and a stream at its other end."""
    here, there = socket.socketpair()
    here.setblocking(False)
    return here, await stream_over(there, "here", SCHEMA)


async def end(*streams: Stream) -> None:
    for stream in streams:
        stream.abort()
    for stream in streams:
        await stream.wait_closed()


async def take(stream: Stream, stall: float = LONG) -> bytes:
    """Receive one frame and return its payload."""
    await stream.receive(stall=stall)
    return await stream.receive_payload(stall=stall)


def frame(content: object, payload: bytes = b"") -> bytes:
    header = msgpack.packb(content)
    return struct.pack(">IQ", len(header), len(payload)) + header + payload


NOTE = frame(["note", {"text": "hello"}])
CHUNK = frame(["chunk", {"index": 1}], b"payload")
