"""How fast bytes come and go between two peers: a short measurement, which every node answers.

First they come and then they go, each time on some streams at once, as libp2p lets little of one be under way. Who asks
for bytes is sent noise until it has counted for long enough; who offers bytes is told how many have come. The other
side may be the slower one, so what is measured is the least that a link carries.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field

from prime_p2p.errors import PrimeError
from prime_p2p.network import tasks
from prime_p2p.network.deadline import within
from prime_p2p.network.frames import FrameError, Message, Schema
from prime_p2p.network.node import Node
from prime_p2p.network.streams import Stream, StreamStalled
from prime_p2p.network.version import node_stream_name

T = TypeVar("T")

PROTOCOL = node_stream_name("speed")
LANES = 4  # streams at once
SIZE = 16_000_000  # bytes sent in one direction, at most
SECONDS = 3.0  # they are counted for, at most
OF_A_PEER = 6  # directions in `_WINDOW` that one peer may have measured, two for a measurement
OF_ALL = 12  # directions in `_WINDOW` for all peers together

_FRAME = 32 * 1024
_WARM = 1.0  # seconds that do not count where there are twice as many: until then a link gets faster
_WINDOW = 60.0  # seconds
_STALL = 5.0  # seconds without a byte
_SESSION = 12.0  # seconds for one stream with all that belongs to it
_END = 3.0  # seconds for the end of one direction to reach us, when the other one has begun
_SEAT = 1.0  # seconds in which nobody else comes between the streams of a measurement


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
    """So many bytes have come on all streams of this direction, in so many seconds."""

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


class _Meter:
    """Counts what comes on the streams of one direction, from the first byte on: how long that took is no matter of
    speed."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._streams: list[Stream] = []
        self._began = (0.0, 0)  # when, and how many bytes there were then
        self._warm: tuple[float, int] | None = None

    def add(self, stream: Stream) -> None:
        """Count a stream too, from its first byte on."""
        if not self._streams:
            self._began = (self._loop.time(), stream.bytes_received)
        else:
            self._began = (self._began[0], self._began[1] + stream.bytes_received)
        self._streams.append(stream)

    @property
    def enough(self) -> bool:
        """Whether to count no longer. To be asked again and again."""
        seconds = self._loop.time() - self._began[0]
        if self._warm is None and seconds > _WARM:
            self._warm = (self._loop.time(), self._bytes())
        return seconds > SECONDS or self._bytes() > SIZE

    def result(self) -> tuple[int, float]:
        """How many bytes came in how many seconds."""
        now = self._loop.time()
        began, before = self._began
        if self._warm is not None and now - began > 2 * _WARM:
            began, before = self._warm
        return self._bytes() - before, now - began

    def _bytes(self) -> int:
        return sum(stream.bytes_received for stream in self._streams)


class _Direction:
    """What is measured with a peer at this moment, or was last."""

    def __init__(self, peer_id: str, kind: str) -> None:
        self.peer_id = peer_id
        self.kind = kind
        self.begun = 0  # streams so far
        self.open = 0
        self.kept_until = 0.0  # when others may come after the last one has ended
        self.meter = _Meter()

    def takes(self, peer_id: str, kind: str, now: float) -> bool:
        """Whether another stream may belong to it."""
        same = (self.peer_id, self.kind) == (peer_id, kind)
        return same and self.begun < LANES and (self.open > 0 or now < self.kept_until)

    def keeps_out(self, peer_id: str, now: float) -> bool:
        """Whether a peer may not begin another one."""
        return self.open > 0 or (peer_id != self.peer_id and now < self.kept_until)


class Speed:
    """Measures with other peers, and answers theirs: one at a time, and each of them a few times a minute.

    ``willing`` is asked before others are answered: whether there is nothing now that must not be disturbed.
    """

    def __init__(self, node: Node, willing: Callable[[], bool] = lambda: True) -> None:
        self._node = node
        self._willing = willing
        self._measures = False
        self._direction: _Direction | None = None
        self._idle = asyncio.Event()  # set while no stream of the direction is open
        self._idle.set()
        self._served: deque[tuple[float, str]] = deque()  # the directions of the last `_WINDOW`: when, and whose
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
        if self._measures or not self._idle.is_set():
            raise NotMeasured("this peer measures already")
        self._measures = True
        try:
            return await within(timeout, self._both_ways(peer_id, timeout))
        except asyncio.TimeoutError:
            raise StreamStalled(peer_id, f"no measurement within {timeout:g} s") from None
        finally:
            self._measures = False

    async def _both_ways(self, peer_id: str, timeout: float) -> Measured:
        async with self._lanes(peer_id, AskBytes(), timeout) as (streams, answers):
            meter = _Meter()
            await _all(_count(stream, first, meter) for stream, first in zip(streams, answers, strict=True))
            down = _rate(*meter.result())
        async with self._lanes(peer_id, OfferBytes(), timeout) as (streams, answers):
            if not all(isinstance(answer, Go) for answer in answers):
                raise FrameError(f"{peer_id}: answers an offer with something else")
            counted = max(await _all(map(self._offered, streams)), key=lambda counted: counted.seconds)
            sent = sum(stream.bytes_sent for stream in streams)
            up = _rate(min(counted.count, sent), counted.seconds)
        return Measured(up, down)

    @contextlib.asynccontextmanager
    async def _lanes(
        self, peer_id: str, request: Message, timeout: float
    ) -> AsyncIterator[tuple[list[Stream], list[Message]]]:
        """Streams on which the request was made, and what was said to it first."""
        streams: list[Stream] = []
        try:
            for _ in range(LANES):
                streams.append(await self._node.open(peer_id, PROTOCOL, SPEED, timeout))
            yield streams, await _all(_asked(stream, request) for stream in streams)
        finally:
            for stream in streams:
                stream.abort()  # what is still on its way is of no more use

    async def _offered(self, stream: Stream) -> Counted:
        sending = asyncio.ensure_future(self._send(stream))
        try:
            counted = await stream.receive(stall=_SESSION)
        finally:
            await tasks.end([sending])
        if not isinstance(counted, Counted):
            raise FrameError(f"{stream.peer_id}: does not say how much it was sent")
        return counted

    async def _answer(self, stream: Stream) -> None:
        request = await stream.receive(stall=_STALL)
        before = self._direction
        if before is not None and (before.peer_id, before.kind) == (stream.peer_id, _OTHER_WAY.get(request.kind)):
            with contextlib.suppress(asyncio.TimeoutError):  # its end may reach us after the beginning of this one
                await within(_END, self._idle.wait())
        direction = self._entered(stream.peer_id, request.kind)
        if isinstance(direction, Refused):
            await stream.send(direction, stall=_STALL)
            return
        try:
            await within(_SESSION, self._serve(stream, request, direction.meter))
        except asyncio.TimeoutError:
            raise StreamStalled(stream.peer_id, f"no measurement within {_SESSION:g} s") from None
        finally:
            self._leave(direction)

    def _entered(self, peer_id: str, kind: str) -> _Direction | Refused:
        """The direction that a stream is of, with the stream counted in; or why there is none."""
        now = asyncio.get_running_loop().time()
        direction = self._direction
        if direction is None or not direction.takes(peer_id, kind, now):
            refusal = self._refusal(peer_id, now)
            if refusal is not None:
                return refusal
            self._served.append((now, peer_id))
            direction = self._direction = _Direction(peer_id, kind)
        direction.begun += 1
        direction.open += 1
        self._idle.clear()
        return direction

    def _refusal(self, peer_id: str, now: float) -> Refused | None:
        """Why no new direction is begun with a peer."""
        while self._served and self._served[0][0] < now - _WINDOW:
            self._served.popleft()
        if self._measures or (self._direction is not None and self._direction.keeps_out(peer_id, now)):
            return Refused(reason="measuring")
        if len(self._served) >= OF_ALL or sum(peer == peer_id for _, peer in self._served) >= OF_A_PEER:
            return Refused(reason="often")
        return None if self._willing() else Refused(reason="round")

    def _leave(self, direction: _Direction) -> None:
        direction.open -= 1
        if not direction.open:
            direction.kept_until = asyncio.get_running_loop().time() + _SEAT
            self._idle.set()

    async def _serve(self, stream: Stream, request: Message, meter: _Meter) -> None:
        if isinstance(request, AskBytes):
            await self._send(stream)
        elif isinstance(request, OfferBytes):
            await stream.send(Go(), stall=_STALL)
            await _count(stream, await stream.receive(stall=_STALL), meter)
            count, seconds = meter.result()
            await stream.send(Counted(count=count, seconds=seconds), stall=_STALL)

    async def _send(self, stream: Stream) -> None:
        """Send noise, until it is a lot or whoever counts must have counted for long enough."""
        loop = asyncio.get_running_loop()
        until = loop.time() + 2 * SECONDS
        for _ in range(SIZE // LANES // _FRAME):
            if loop.time() > until:
                break
            await stream.send(Noise(), self._noise, stall=_STALL)
        await stream.send(Enough(), stall=_STALL)


_OTHER_WAY = {AskBytes.kind: OfferBytes.kind, OfferBytes.kind: AskBytes.kind}


async def _asked(stream: Stream, request: Message) -> Message:
    """Make a request, and return what the other peer says to it."""
    await stream.send(request, stall=_STALL)
    answer = await stream.receive(stall=_STALL)
    if isinstance(answer, Refused):
        raise NotMeasured(f"{stream.peer_id}: {_WHY_NOT[answer.reason]}")
    return answer


async def _count(stream: Stream, message: Message, meter: _Meter) -> None:
    """Take noise, of which `message` is the first, until the meter has enough or there is no more."""
    meter.add(stream)
    while isinstance(message, Noise) and not meter.enough:
        await stream.receive_payload(stall=_STALL)
        message = await stream.receive(stall=_STALL)
    if not isinstance(message, Noise | Enough):
        raise FrameError(f"{stream.peer_id}: sends something else than noise")


async def _all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run them at the same time; where one fails, the others end."""
    running = [asyncio.ensure_future(one) for one in coroutines]
    try:
        return await asyncio.gather(*running)
    finally:
        await tasks.end(running)


def _rate(count: int, seconds: float) -> float:
    """Mbit/s."""
    return count * 8e-6 / max(seconds, 1e-3)
