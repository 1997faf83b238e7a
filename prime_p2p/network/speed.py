"""How fast bytes come and go between two peers: a short measurement, which every node answers.

There is a stream for each direction. Who asks for bytes is sent some until it has counted for long enough; who offers
bytes is told how many have come. It is one stream for a few seconds: a link that is far away may carry more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field

from prime_p2p.errors import PrimeError
from prime_p2p.network import tasks
from prime_p2p.network.deadline import within
from prime_p2p.network.frames import FrameError, Message, Schema
from prime_p2p.network.node import Node
from prime_p2p.network.streams import Stream, StreamStalled

PROTOCOL = "prime-p2p/1/speed"
SIZE = 16_000_000  # bytes sent in one direction, at most
SECONDS = 3.0  # they are counted for, at most
OF_A_PEER = 6  # streams in `_WINDOW` that one peer may have bytes measured on, two for a measurement
OF_ALL = 20  # streams in `_WINDOW` for all peers together

_FRAME = 64 * 1024
_WINDOW = 60.0  # seconds
_STALL = 5.0  # seconds without a byte
_SESSION = 12.0  # seconds for one direction with all that belongs to it
_SEAT = 1.0  # seconds in which nobody else comes between the two directions of a measurement


class AskBytes(Message):
    kind: ClassVar[str] = "ask-bytes"


class OfferBytes(Message):
    kind: ClassVar[str] = "offer-bytes"


class Go(Message):
    """What was offered may come."""

    kind: ClassVar[str] = "go"


class Refused(Message):
    kind: ClassVar[str] = "refused"
    reason: Literal["measuring", "often", "round"]


class Noise(Message):
    kind: ClassVar[str] = "noise"
    max_payload: ClassVar[int] = _FRAME


class Enough(Message):
    """No more noise comes."""

    kind: ClassVar[str] = "enough"


class Counted(Message):
    """So many bytes came in so many seconds."""

    kind: ClassVar[str] = "counted"
    count: int = Field(ge=0, le=2 * SIZE)
    seconds: float = Field(ge=0, le=3600)


SPEED = Schema(AskBytes, OfferBytes, Go, Refused, Noise, Enough, Counted)

_WHY_NOT = {
    "measuring": "it measures with another peer; try again in some seconds",
    "often": "it has measured often in this minute; try again later",
    "round": "it is in the middle of a round; try again in some seconds",
}


@dataclass(frozen=True)
class Measured:
    """Mbit/s from us to the other peer, and from it to us."""

    up: float
    down: float


class NotMeasured(PrimeError):
    """The other peer, or this one, does not measure now."""


class Speed:
    """Measures with other peers, and answers theirs: one at a time, and each of them a few times a minute.

    ``willing`` is asked before others are answered: whether there is nothing now that must not be disturbed.
    """

    def __init__(self, node: Node, willing: Callable[[], bool] = lambda: True) -> None:
        self._node = node
        self._willing = willing
        self._idle = asyncio.Event()
        self._idle.set()
        self._seat: tuple[str, float] = ("", 0.0)  # whom the next stream is kept for, and until when
        self._served: deque[tuple[float, str]] = deque()  # the streams of the last `_WINDOW`: when, and whose
        self._noise = os.urandom(_FRAME)  # nothing on the way can make it smaller

    async def serve(self) -> None:
        """Answer from now on."""
        await self._node.serve(PROTOCOL, SPEED, self._answer)

    async def measure(self, peer_id: str, timeout: float) -> Measured:
        """Measure with a peer that serves this.

        Raises:
            NotMeasured: it has no time for that, or this node measures already.
            StreamLost: it is not there, or does not measure at all.
            StreamStalled: it took longer than `timeout` seconds.
            FrameError: it does not follow the protocol.
        """
        if not self._idle.is_set():
            raise NotMeasured("this peer measures already")
        self._idle.clear()
        try:
            return await within(timeout, self._both_ways(peer_id, timeout))
        except asyncio.TimeoutError:
            raise StreamStalled(peer_id, f"no measurement within {timeout:g} s") from None
        finally:
            self._idle.set()

    async def _both_ways(self, peer_id: str, timeout: float) -> Measured:
        async with self._opened(peer_id, timeout) as stream:
            await stream.send(AskBytes(), stall=_STALL)
            down = _rate(*await _count(stream, await _next(stream)))
        async with self._opened(peer_id, timeout) as stream:
            await stream.send(OfferBytes(), stall=_STALL)
            if not isinstance(await _next(stream), Go):
                raise FrameError(f"{peer_id}: answers an offer with something else")
            up = await self._offered(stream)
        return Measured(up, down)

    @contextlib.asynccontextmanager
    async def _opened(self, peer_id: str, timeout: float) -> AsyncIterator[Stream]:
        stream = await self._node.open(peer_id, PROTOCOL, SPEED, timeout)
        try:
            yield stream
        finally:
            stream.abort()  # what is still on its way is of no more use

    async def _offered(self, stream: Stream) -> float:
        sending = asyncio.ensure_future(self._send(stream))
        try:
            counted = await stream.receive(stall=_SESSION)
        finally:
            await tasks.end([sending])
        if not isinstance(counted, Counted):
            raise FrameError(f"{stream.peer_id}: does not say how much it was sent")
        return _rate(min(counted.count, stream.bytes_sent), counted.seconds)

    async def _answer(self, stream: Stream) -> None:
        request = await stream.receive(stall=_STALL)
        if stream.peer_id == self._seat[0]:
            await self._ended()
        refusal = self._refusal(stream.peer_id)
        if refusal is not None:
            await stream.send(refusal, stall=_STALL)
            return
        loop = asyncio.get_running_loop()
        self._served.append((loop.time(), stream.peer_id))
        self._seat = stream.peer_id, loop.time() + _SESSION
        self._idle.clear()
        try:
            await within(_SESSION, self._serve(stream, request))
        except asyncio.TimeoutError:
            raise StreamStalled(stream.peer_id, f"no measurement within {_SESSION:g} s") from None
        finally:
            self._idle.set()
            self._seat = stream.peer_id, loop.time() + _SEAT

    async def _ended(self) -> None:
        """Wait for the first stream of a measurement, whose end may reach us after the beginning of the second one."""
        with contextlib.suppress(asyncio.TimeoutError):
            await within(_SEAT, self._idle.wait())

    def _refusal(self, peer_id: str) -> Refused | None:
        now = asyncio.get_running_loop().time()
        while self._served and self._served[0][0] < now - _WINDOW:
            self._served.popleft()
        holder, until = self._seat
        if not self._idle.is_set() or (holder != peer_id and now < until):
            return Refused(reason="measuring")
        if len(self._served) >= OF_ALL or sum(peer == peer_id for _, peer in self._served) >= OF_A_PEER:
            return Refused(reason="often")
        return None if self._willing() else Refused(reason="round")

    async def _serve(self, stream: Stream, request: Message) -> None:
        if isinstance(request, AskBytes):
            await self._send(stream)
        elif isinstance(request, OfferBytes):
            await stream.send(Go(), stall=_STALL)
            count, seconds = await _count(stream, await stream.receive(stall=_STALL))
            await stream.send(Counted(count=count, seconds=seconds), stall=_STALL)

    async def _send(self, stream: Stream) -> None:
        """Send noise, until it is a lot or whoever counts must have counted for long enough."""
        loop = asyncio.get_running_loop()
        until = loop.time() + 2 * SECONDS
        for _ in range(SIZE // _FRAME):
            if loop.time() > until:
                break
            await stream.send(Noise(), self._noise, stall=_STALL)
        await stream.send(Enough(), stall=_STALL)


async def _next(stream: Stream) -> Message:
    """What the other peer says to a request."""
    answer = await stream.receive(stall=_STALL)
    if isinstance(answer, Refused):
        raise NotMeasured(f"{stream.peer_id}: {_WHY_NOT[answer.reason]}")
    return answer


async def _count(stream: Stream, message: Message) -> tuple[int, float]:
    """Take noise, of which `message` is the first, for long enough; returns how many bytes came in how many seconds.

    The time begins when the first bytes are there: how long they took is no matter of speed.
    """
    loop = asyncio.get_running_loop()
    began, before = loop.time(), stream.bytes_received
    while isinstance(message, Noise) and loop.time() < began + SECONDS and stream.bytes_received < SIZE:
        await stream.receive_payload(stall=_STALL)
        message = await stream.receive(stall=_STALL)
    if not isinstance(message, Noise | Enough):
        raise FrameError(f"{stream.peer_id}: sends something else than noise")
    return stream.bytes_received - before, loop.time() - began


def _rate(count: int, seconds: float) -> float:
    """Mbit/s."""
    return count * 8e-6 / max(seconds, 1e-3)
