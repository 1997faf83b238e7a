"""Streams: whole messages with exact payloads, and nothing but messages."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import LOOPS, JumpingLoop, run
from stream_ends import LONG, NOTE, Chunk, Note, OnLoop, end, frame, half, pair, take

from prime_p2p.network.frames import FrameError
from prime_p2p.network.pipe import SPILL
from prime_p2p.network.streams import StreamError


@pytest.fixture(params=LOOPS)
def on_loop(request: pytest.FixtureRequest) -> OnLoop:
    """Runs a test's coroutine on each kind of loop."""
    return lambda test: run(test(), LOOPS[request.param]())


def test_messages_arrive_in_order_with_their_payloads(on_loop: OnLoop) -> None:
    async def test() -> None:
        one, two = await pair()
        await one.send(Note(text="first"), stall=LONG)
        await one.send(Chunk(index=1), b"ab", b"", bytearray(b"cd"), memoryview(b"ef"), stall=LONG)
        await one.send(Chunk(index=2), stall=LONG)
        assert await two.receive(stall=LONG) == Note(text="first")
        assert await two.receive(stall=LONG) == Chunk(index=1)
        assert two.payload_left == 6
        assert await two.receive_payload(stall=LONG) == b"abcdef"
        assert await two.receive(stall=LONG) == Chunk(index=2)
        assert await two.receive_payload(stall=LONG) == b""
        await two.send(Note(text="back"), stall=LONG)
        assert await one.receive(stall=LONG) == Note(text="back")
        assert (one.bytes_sent, one.bytes_received) == (two.bytes_received, two.bytes_sent)
        await end(one, two)

    on_loop(test)


def test_a_payload_far_larger_than_the_kernels_buffers_arrives_exactly(on_loop: OnLoop) -> None:
    async def test() -> None:
        one, two = await pair()
        sent = np.random.default_rng(0).integers(0, 256, 20 << 20, dtype=np.uint8)
        received = np.zeros_like(sent)

        async def take_in_pieces() -> None:
            await two.receive(stall=LONG)
            view, at = received.data, 0
            for size in (1, 12, 70_000, 3 << 20):
                await two.receive_into(view[at : at + size], stall=LONG)
                at += size
            assert two.payload_left == len(sent) - at
            await two.receive_into(view[at:], stall=LONG)

        taking = asyncio.ensure_future(take_in_pieces())
        await one.send(Chunk(), sent.data[: 1 << 20], sent.data[1 << 20 :], stall=LONG)
        sent_bytes = sent.tobytes()
        sent[:] = 0  # whoever sent a buffer may use it again
        await taking
        assert received.tobytes() == sent_bytes
        await end(one, two)

    on_loop(test)


def test_arrays_of_any_shape_and_type_are_sent_as_their_bytes(on_loop: OnLoop) -> None:
    async def test() -> None:
        one, two = await pair()
        arrays: list[np.ndarray[Any, Any]] = [
            np.arange(6, dtype=np.float32).reshape(2, 3),
            np.empty((0, 3), np.int8),
            np.arange(3, dtype=np.int64),
        ]
        await one.send(Chunk(), *(array.data for array in arrays), stall=LONG)
        await two.receive(stall=LONG)
        assert await two.receive_payload(stall=LONG) == b"".join(array.tobytes() for array in arrays)
        await end(one, two)

    on_loop(test)


def test_messages_sent_by_many_tasks_at_once_arrive_whole(on_loop: OnLoop) -> None:
    async def test() -> None:
        one, two = await pair()
        sizes = [100_000 * (index % 4) + index for index in range(24)]
        sending = [
            asyncio.ensure_future(one.send(Chunk(index=index), bytes([index]) * size, stall=LONG))
            for index, size in enumerate(sizes)
        ]
        for _ in sizes:
            message = await two.receive(stall=LONG)
            assert isinstance(message, Chunk)
            assert await two.receive_payload(stall=LONG) == bytes([message.index]) * sizes[message.index]
        await asyncio.gather(*sending)
        await end(one, two)

    on_loop(test)


@given(data=st.data())
@settings(max_examples=40)
def test_bytes_are_read_as_they_were_written_however_they_are_cut(data: st.DataObject) -> None:
    content = np.random.default_rng(1).bytes(data.draw(st.integers(0, 4 * SPILL)))
    cuts = st.lists(st.integers(1, 2 * SPILL), max_size=12)
    writes, reads = data.draw(cuts), data.draw(cuts)
    pauses = data.draw(st.lists(st.booleans(), min_size=len(writes) + 1, max_size=len(writes) + 1))

    async def test() -> None:
        raw, stream = await half()

        async def write() -> None:
            rest = frame(["chunk", {}], content)
            for size, pause in zip([*writes, len(rest)], pauses, strict=True):
                await asyncio.get_running_loop().sock_sendall(raw, rest[:size])
                rest = rest[size:]
                if pause:
                    await asyncio.sleep(1)

        writing = asyncio.ensure_future(write())
        await stream.receive(stall=LONG)
        received = bytearray(len(content))
        at = 0
        for size in [*reads, len(content)]:
            stop = min(at + size, len(content))
            await stream.receive_into(memoryview(received)[at:stop], stall=LONG)
            at = stop
        assert received == content
        await writing
        await end(stream)
        raw.close()

    run(test(), JumpingLoop())


def test_bytes_nobody_wants_yet_wait_in_the_kernel() -> None:
    async def test() -> None:
        one, two = await pair()
        payload = bytes(range(256)) * (4 << 12)
        sending = asyncio.ensure_future(one.send(Chunk(), payload, stall=LONG))
        await two.receive(stall=LONG)
        await asyncio.sleep(1)
        assert two.bytes_received <= SPILL + 200
        assert not sending.done()
        assert await two.receive_payload(stall=LONG) == payload
        await sending
        await end(one, two)

    run(test(), JumpingLoop())


def test_a_payload_must_be_received_before_the_next_message_and_has_an_end(on_loop: OnLoop) -> None:
    async def test() -> None:
        one, two = await pair()
        await one.send(Chunk(), b"payload", stall=LONG)
        await two.receive(stall=LONG)
        with pytest.raises(RuntimeError, match="7 bytes of the last payload"):
            await two.receive(stall=LONG)
        with pytest.raises(RuntimeError, match="8 bytes wanted"):
            await two.receive_into(memoryview(bytearray(8)), stall=LONG)
        assert await two.receive_payload(stall=LONG) == b"payload"
        await end(one, two)

    on_loop(test)


def test_two_tasks_cannot_receive_at_once(on_loop: OnLoop) -> None:
    async def test() -> None:
        one, two = await pair()
        first = asyncio.ensure_future(two.receive(stall=LONG))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="two tasks"):
            await two.receive(stall=LONG)
        await one.send(Note(text="for the first"), stall=LONG)
        assert await first == Note(text="for the first")
        await end(one, two)

    on_loop(test)


def test_what_may_not_be_sent_is_refused_and_the_stream_goes_on(on_loop: OnLoop) -> None:
    async def test() -> None:
        one, two = await pair()
        with pytest.raises(FrameError, match="more than 0"):
            await one.send(Note(text=""), b"payload", stall=LONG)
        await one.send(Note(text="next"), stall=LONG)
        assert await two.receive(stall=LONG) == Note(text="next")
        await end(one, two)

    on_loop(test)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (struct.pack(">IQ", 1 << 17, 0), "^here: header of 131072 bytes"),
        (struct.pack(">IQ", 2**32 - 1, 2**64 - 1), "^here: header of 4294967295 bytes"),
        (struct.pack(">IQ", 1, 2**63), "^here: payload of 9223372036854775808 bytes"),
        (frame(["note", {"text": ""}], b"payload"), "^here: payload of 'note' has 7 bytes"),
        (frame(["note", {"text": 1}]), "^here: 'note' with a bad text"),
        (frame(["other", {}]), "^here: 'other' is no message"),
        (b"GET / HTTP/1.1\r\n\r\n", "^here: header of 1195725856 bytes"),
    ],
)
def test_bytes_that_are_no_frame_end_the_stream(on_loop: OnLoop, content: bytes, reason: str) -> None:
    async def test() -> None:
        raw, stream = await half()
        raw.send(content)
        with pytest.raises(FrameError, match=reason):
            await stream.receive(stall=LONG)
        await stream.wait_closed()
        raw.close()

    on_loop(test)


@given(content=st.binary(max_size=300))
@settings(max_examples=100)
def test_any_bytes_are_messages_or_end_the_stream(content: bytes) -> None:
    async def test() -> None:
        raw, stream = await half()
        raw.send(NOTE + content)
        raw.close()
        assert await stream.receive(stall=LONG) == Note(text="hello")

        async def take_all() -> None:
            while True:
                await take(stream)

        with pytest.raises((FrameError, StreamError)):
            await take_all()
        await stream.wait_closed()

    run(test(), JumpingLoop())
