"""Bytes in and out of one socket, with a limit on the time in which none of them moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

Buffer = bytes | bytearray | memoryview

SPILL = 64 * 1024  # bytes that may arrive before somebody wants them; more of them wait in the kernel
SLOWEST = 1024  # bytes a second: less than that, for the time allowed, is no move at all
_TICKS = 8  # how often in a stall time progress is looked at: a stall is noticed at most an eighth late


class Stalled(Exception):
    """Not a single byte has moved for the time allowed."""


class EndOfBytes(Exception):
    """The pipe was closed, on either side, or broke before all the bytes wanted had moved."""


class Pipe(asyncio.BufferedProtocol):
    """One socket, read and written without copies: bytes go from the kernel into the buffer of whoever wants them.

    One task may read and one may write at a time; the two do not disturb each other. After a read or write that failed
    or was cancelled an unknown number of bytes has moved: the pipe is good for nothing but `abort`.

    `connected`, if given, is called with the pipe once it is connected.
    """

    def __init__(self, connected: Callable[[Pipe], None] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._connected = connected
        self._transport: asyncio.Transport
        self._spill = _Spill()
        self._target: memoryview | None = None  # the buffer of the read in progress
        self._filled = 0
        self._reading: asyncio.Future[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._writable = True
        self._paused = False
        self._ended: asyncio.Future[None] = self._loop.create_future()  # nothing more will come
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.bytes_received = 0
        self.bytes_sent = 0

    async def readable(self, stall: float) -> bool:
        """Wait for bytes to read without taking any; return False if there will be none any more.

        Raises:
            Stalled: none has come for `stall` seconds. The pipe is as it was, also when this is cancelled.
        """
        if not self._spill.length and not self._ended.done():
            self._reading = self._waiter(self._reading)
            try:
                await self._watch(self._reading, lambda: 0, stall)
            finally:
                self._reading = None
        return self._spill.length > 0

    async def read(self, buffer: memoryview, stall: float) -> None:
        """Fill `buffer`.

        Raises:
            Stalled: for `stall` seconds less than `SLOWEST` bytes a second have come.
            EndOfBytes: see there.
        """
        got = self._spill.take(buffer)
        if self._paused and not self._spill.length:
            self._pause(False)
        if got < len(buffer) and not self._ended.done():
            self._reading = self._waiter(self._reading)
            self._target, self._filled = buffer, got
            try:
                await self._watch(self._reading, lambda: self._filled, stall, max(1, int(SLOWEST * stall)))
            finally:
                self._target = self._reading = None
            got = self._filled
        if got < len(buffer):
            raise EndOfBytes

    async def write(self, buffers: Sequence[Buffer], stall: float) -> None:
        """Hand `buffers` to the kernel; they may be changed again afterwards, and after `abort` if this raises.

        Raises:
            Stalled: the kernel has taken no byte for `stall` seconds.
            EndOfBytes: see there.
        """
        if self._transport.is_closing():
            raise EndOfBytes
        for buffer in buffers:  # not writelines: on asyncio of Python 3.12 and 3.13 that never pauses (gh-127655)
            self._transport.write(buffer)
        if not self._writable:
            self._writing = self._waiter(self._writing)
            try:
                await self._watch(self._writing, lambda: -self._transport.get_write_buffer_size(), stall)
            finally:
                self._writing = None
        if self._transport.is_closing():
            raise EndOfBytes
        self.bytes_sent += sum(map(len, buffers))

    async def ended(self) -> None:
        """Return when nothing more will come; bytes that have come already may be left."""
        await asyncio.shield(self._ended)

    @property
    def reading(self) -> bool:
        """Whether a `read` waits for more bytes."""
        return self._target is not None

    def wake(self) -> None:
        """Have a `readable` that waits return."""
        if self._target is None:
            _wake(self._reading)

    def abort(self) -> None:
        """Close at once; what has not left yet is dropped."""
        self._transport.abort()

    def _waiter(self, other: asyncio.Future[None] | None) -> asyncio.Future[None]:
        if other is not None:
            raise RuntimeError("two tasks use one direction of a pipe at the same time")
        return self._loop.create_future()

    async def _watch(
        self, waiter: asyncio.Future[None], progress: Callable[[], int], stall: float, least: int = 1
    ) -> None:
        """Wait for `waiter`, as long as `progress()` keeps growing, by `least` in `stall` seconds."""
        loop, tick = self._loop, stall / _TICKS
        seen, since = progress(), loop.time()
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal seen, since, timer
            moved, now = progress(), loop.time()
            if moved >= seen + least:
                seen, since = moved, now
            if now - since < stall:
                timer = loop.call_later(tick, look)
            elif not waiter.done():
                waiter.set_exception(Stalled())

        timer = loop.call_later(tick, look)
        try:
            await waiter
        finally:
            timer.cancel()

    def _pause(self, paused: bool) -> None:
        if paused != self._paused and not self._transport.is_closing():
            self._paused = paused
            (self._transport.pause_reading if paused else self._transport.resume_reading)()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # A write is over when the kernel has all of it: then its buffers belong to the caller again.
        self._transport.set_write_buffer_limits(high=0)
        if self._connected is not None:
            self._connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._target is not None:
            return self._target[self._filled :]
        return self._spill.room()

    def buffer_updated(self, nbytes: int) -> None:
        self.bytes_received += nbytes
        if self._target is None:
            self._spill.added(nbytes)
            self._pause(not self._spill.free)
            _wake(self._reading)
            return
        self._filled += nbytes
        if self._filled == len(self._target):
            self._target = None
            _wake(self._reading)

    def eof_received(self) -> bool:
        self._end()
        return True  # this side may go on writing

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        _wake(self._writing)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        _wake(self._writing)
        _wake(self.closed)

    def _end(self) -> None:
        self._target = None
        _wake(self._ended)
        _wake(self._reading)


class _Spill:
    """Bytes that nobody has wanted yet, first in, first out."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(SPILL))
        self._start = 0
        self._stop = 0

    @property
    def length(self) -> int:
        return self._stop - self._start

    @property
    def free(self) -> int:
        return SPILL - self._stop

    def room(self) -> memoryview:
        return self._buffer[self._stop :]

    def added(self, count: int) -> None:
        self._stop += count

    def take(self, buffer: memoryview) -> int:
        """Move bytes to the front of `buffer`, as many as there are and fit, and return how many."""
        count = min(self.length, len(buffer))
        buffer[:count] = self._buffer[self._start : self._start + count]
        self._start += count
        if self._start == self._stop:
            self.clear()
        return count

    def clear(self) -> None:
        self._start = self._stop = 0


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
