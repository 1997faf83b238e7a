"""Framed messages with payloads over one connection to one peer."""

import asyncio
import contextlib
import socket
from collections.abc import Callable

from prime_p2p.errors import PrimeError
from prime_p2p.network.deadline import within
from prime_p2p.network.frames import PREFIX_SIZE, FrameError, Message, Schema
from prime_p2p.network.pipe import Buffer, EndOfBytes, Pipe, Stalled

LINGER = 10.0  # seconds a closed stream waits for the other side to close too, so that what was sent last arrives
END = bytes(PREFIX_SIZE)  # in the place of a frame: the sender of it sends no more, and reads no more
_SKIPPED = 64 * 1024  # bytes thrown away at a time


class StreamError(PrimeError):
    """The stream to `peer_id` is of no more use."""

    def __init__(self, peer_id: str, reason: str) -> None:
        super().__init__(f"{peer_id}: {reason}")
        self.peer_id = peer_id


class StreamLost(StreamError):
    """The other side is gone, or the connection to it broke."""


class StreamClosed(StreamLost):
    """The other side has closed the stream, after a whole frame."""


class StreamStalled(StreamError):
    """Nothing moved for the time allowed, see `Stream`."""


class Stream:
    """Messages of one schema, to and from one peer.

    Any number of tasks may send, one at a time receives. `stall` is in seconds and counts only time in which nothing
    moves: a slow stream is not stalled. To a receiver that has begun to read, fewer than `pipe.SLOWEST` bytes a second
    are none, so that nobody holds it with a byte now and then. A sender hands its bytes to the daemon of this machine,
    which holds some hundred kilobytes for a slow peer and takes more in pieces of up to 128 KiB: to a sender, fewer
    bytes than that within `stall` are none. Whether a peer is alive is learnt from its answers.

    After an error the stream is aborted, with one exception: a `receive` that stalls or is cancelled before the first
    byte of a frame has come leaves it as it was.
    """

    def __init__(self, pipe: Pipe, peer_id: str, schema: Schema) -> None:
        self.peer_id = peer_id
        self.schema = schema
        self.payload_left = 0
        self._pipe = pipe
        self._sending = asyncio.Lock()
        self._closed = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def bytes_sent(self) -> int:
        """Bytes sent so far, headers included."""
        return self._pipe.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Bytes received so far, headers included."""
        return self._pipe.bytes_received

    async def send(self, message: Message, *buffers: Buffer, stall: float) -> None:
        """Send one frame, whose payload is `buffers` in a row. They may be changed again once this has returned.

        Raises:
            FrameError: the message or the size of its payload is not allowed; nothing has been sent.
            StreamStalled, StreamLost: see `Stream`.
        """
        views = [memoryview(buffer).cast("B") for buffer in buffers if memoryview(buffer).nbytes]
        head = self.schema.encode(message, sum(map(len, views)))
        async with self._sending:
            if self._closed:
                raise StreamLost(self.peer_id, "this side has closed the stream")
            try:
                await self._pipe.write([head, *views], stall)
            except EndOfBytes:
                raise self._lost() from None
            except Stalled:
                self.abort()
                raise StreamStalled(self.peer_id, f"took no byte for {stall:g} s") from None
            except asyncio.CancelledError:
                self.abort()  # half a frame may have left
                raise

    async def begins(self, *, stall: float) -> None:
        """Wait for the first byte of the next message, which is left where it is.

        Raises:
            StreamClosed, StreamStalled, StreamLost: see `Stream`.
        """
        await self._wait_for_frame(stall)

    async def receive(self, *, stall: float) -> Message:
        """Return the next message; its payload, `payload_left` bytes, is to be received before the next one.

        Raises:
            FrameError: the bytes that came are no message of this stream's schema.
            StreamClosed, StreamStalled, StreamLost: see `Stream`.
        """
        if self.payload_left:
            raise RuntimeError(f"{self.payload_left} bytes of the last payload have not been received")
        await self._wait_for_frame(stall)
        prefix = memoryview(bytearray(PREFIX_SIZE))
        await self._read(prefix, stall)
        if prefix == END:
            self.abort()
            raise StreamClosed(self.peer_id, "closed the stream")
        try:
            header_length, payload_length = self.schema.decode_prefix(prefix)
            header = memoryview(bytearray(header_length))
            await self._read(header, stall)
            message = self.schema.decode(header, payload_length)
        except FrameError as error:
            self.abort()
            raise FrameError(f"{self.peer_id}: {error}") from None
        self.payload_left = payload_length
        return message

    async def receive_into(self, buffer: memoryview, *, stall: float) -> None:
        """Fill `buffer`, a writable one of bytes, with the next bytes of the payload.

        Raises:
            StreamStalled, StreamLost: see `Stream`.
        """
        view = buffer.cast("B")
        if len(view) > self.payload_left:
            raise RuntimeError(f"{len(view)} bytes wanted of a payload that has {self.payload_left} left")
        await self._read(view, stall)
        self.payload_left -= len(view)

    async def receive_payload(self, *, stall: float) -> bytes:
        """Return the rest of the payload.

        Raises:
            StreamStalled, StreamLost: see `Stream`.
        """
        payload = bytearray(self.payload_left)
        await self.receive_into(memoryview(payload), stall=stall)
        return bytes(payload)

    async def _wait_for_frame(self, stall: float) -> None:
        try:
            readable = await self._pipe.readable(stall)
        except Stalled:
            raise self._silent(stall) from None
        if self._closed:
            raise StreamLost(self.peer_id, "this side has closed the stream")
        if not readable:
            self.abort()
            raise StreamClosed(self.peer_id, "closed the stream")

    async def _read(self, buffer: memoryview, stall: float) -> None:
        try:
            await self._pipe.read(buffer, stall)
        except EndOfBytes:
            raise self._lost() from None
        except Stalled:
            self.abort()
            raise StreamStalled(self.peer_id, f"sent next to nothing for {stall:g} s") from None
        except asyncio.CancelledError:
            self.abort()  # half a frame may be gone
            raise

    def _silent(self, stall: float) -> StreamStalled:
        return StreamStalled(self.peer_id, f"sent no byte for {stall:g} s")

    def _lost(self) -> StreamLost:
        self.abort()
        return StreamLost(self.peer_id, "the connection broke")

    def close(self) -> None:
        """End the stream, in both directions. What was sent arrives; what the other side still sends does not.

        Where something was sent the connection stays until the other side has read that far, `LINGER` at most: a libp2p
        daemon whose process has left may reset the stream, and what is on its way is lost then. In the middle of a
        `receive` of this side it ends at once.
        """
        if self._closed:
            return
        self._closed = True
        if not self.bytes_sent or self._pipe.reading:
            self.abort()  # at once, for the other side to know that nobody reads what it sends
            return
        self._pipe.wake()  # whoever waits for a frame is gone when the closing begins to read
        self._closing = asyncio.get_running_loop().create_task(self._close())

    async def _close(self) -> None:
        try:
            with contextlib.suppress(asyncio.TimeoutError, EndOfBytes, Stalled, FrameError):
                await within(LINGER, self._end_together())
        finally:
            self.abort()

    async def _end_together(self) -> None:
        """Say that we send no more, and return when the other side has said so too, or has left."""
        async with self._sending:
            await self._pipe.write([END], LINGER)
        await self._skip(self.payload_left)
        prefix = memoryview(bytearray(PREFIX_SIZE))
        while True:
            await self._pipe.read(prefix, LINGER)
            if prefix == END:
                return
            await self._skip(sum(self.schema.decode_prefix(prefix)))

    async def _skip(self, count: int) -> None:
        buffer = memoryview(bytearray(min(count, _SKIPPED)))
        while count:
            await self._pipe.read(buffer[:count], LINGER)
            count -= len(buffer[:count])

    def abort(self) -> None:
        """Close at once; what has not left yet is dropped."""
        self._pipe.abort()

    def on_closed(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when the connection is closed."""
        self._pipe.closed.add_done_callback(lambda _: callback())

    async def ended(self) -> None:
        """Return when the other side has closed the stream or is gone; what it sent before may not be read yet."""
        await self._pipe.ended()

    async def wait_closed(self) -> None:
        """Return when the connection is closed, which it is soon after `abort` and at most `LINGER` after `close`."""
        await asyncio.shield(self._pipe.closed)


async def stream_over(connected: socket.socket, peer_id: str, schema: Schema) -> Stream:
    """Return a stream over a connected socket, whose owner it becomes."""
    connected.setblocking(False)
    _, pipe = await asyncio.get_running_loop().connect_accepted_socket(Pipe, connected)
    return Stream(pipe, peer_id, schema)
