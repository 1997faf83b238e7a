"""Streams: a deadline on every silence, and an end that both sides notice."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import numpy as np
import pytest
from loops import LOOPS, JumpingLoop, run
from stream_ends import CHUNK, LONG, NOTE, Chunk, Note, OnLoop, end, frame, half, pair, take

from prime_p2p.network.pipe import SLOWEST, SPILL
from prime_p2p.network.streams import LINGER, StreamClosed, StreamLost, StreamStalled


@pytest.fixture(params=LOOPS)
def on_loop(request: pytest.FixtureRequest) -> OnLoop:
    """Runs a test's coroutine on each kind of loop."""
    return lambda test: run(test(), LOOPS[request.param]())


# ---- silence


def test_silence_is_noticed_and_a_stream_that_was_between_frames_goes_on(on_loop: OnLoop) -> None:
    async def test() -> None:
        one, two = await pair()
        with pytest.raises(StreamStalled, match=r"^here: sent no byte for 0\.05 s$") as stalled:
            await two.receive(stall=0.05)
        assert stalled.value.peer_id == "here"
        await one.send(Note(text="late"), stall=LONG)
        assert await two.receive(stall=LONG) == Note(text="late")
        await end(one, two)

    on_loop(test)


@pytest.mark.parametrize("sent", [1, 11, 12, 15, len(CHUNK) - 1])
def test_silence_within_a_frame_ends_the_stream(sent: int) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        raw, stream = await half()
        await loop.sock_sendall(raw, CHUNK[:sent])
        began = loop.time()
        with pytest.raises(StreamStalled):
            await take(stream, stall=5)
        assert 5 <= loop.time() - began <= 5 * 1.125 + 1e-6
        await stream.wait_closed()
        assert await loop.sock_recv(raw, 1) == b""
        raw.close()

    run(test(), JumpingLoop())


def test_a_sender_that_is_slow_but_moves_is_never_stalled() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        raw, stream = await half()
        payload = bytes(30 * 5 * SLOWEST)
        slow = frame(["chunk", {"index": 1}], payload)

        async def trickle() -> None:
            for start in range(0, len(slow), 5 * SLOWEST):
                await asyncio.sleep(4.9)
                await loop.sock_sendall(raw, slow[start : start + 5 * SLOWEST])

        trickling = asyncio.ensure_future(trickle())
        assert await stream.receive(stall=5) == Chunk(index=1)
        assert await stream.receive_payload(stall=5) == payload
        assert loop.time() > 100
        await trickling
        await end(stream)
        raw.close()

    run(test(), JumpingLoop())


def test_a_sender_of_a_byte_now_and_then_holds_nobody() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        raw, stream = await half()

        async def trickle() -> None:
            with suppress(ConnectionError):
                for byte in CHUNK:
                    await loop.sock_sendall(raw, bytes([byte]))
                    await asyncio.sleep(1)

        trickling = asyncio.ensure_future(trickle())
        with pytest.raises(StreamStalled, match=r"^here: sent next to nothing for 5 s$"):
            await take(stream, stall=5)
        assert loop.time() <= 5 * 1.125 + 1e-6
        await stream.wait_closed()
        await trickling
        raw.close()

    run(test(), JumpingLoop())


def test_a_receiver_that_takes_nothing_is_noticed(on_loop: OnLoop) -> None:
    async def test() -> None:
        one, two = await pair()
        with pytest.raises(StreamStalled, match=r"^there: took no byte for 0\.1 s$"):
            await one.send(Chunk(), bytes(8 << 20), stall=0.1)
        await one.wait_closed()
        with pytest.raises(StreamLost):
            await one.send(Note(text="after"), stall=LONG)
        await end(two)

    on_loop(test)


def test_a_receiver_that_is_slow_but_moves_is_never_stalled() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        raw, stream = await half()
        payload = np.random.default_rng(2).bytes(8 << 20)
        received = bytearray()

        async def sip() -> None:
            while len(received) < len(payload):
                await asyncio.sleep(4.9)
                received.extend(await loop.sock_recv(raw, 1 << 18))

        sipping = asyncio.ensure_future(sip())
        await stream.send(Chunk(), payload, stall=5)
        assert loop.time() > 100
        await sipping
        assert received.endswith(payload[-1000:])
        await end(stream)
        raw.close()

    run(test(), JumpingLoop())


def test_a_receiver_that_stops_after_a_while_is_noticed() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        raw, stream = await half()

        async def sip() -> None:
            for _ in range(8):
                await asyncio.sleep(4.9)
                await loop.sock_recv(raw, 1 << 18)

        sipping = asyncio.ensure_future(sip())
        with pytest.raises(StreamStalled):
            await stream.send(Chunk(), bytes(32 << 20), stall=5)
        assert sipping.done()
        assert 5 <= loop.time() - 8 * 4.9 <= 10
        await end(stream)
        raw.close()

    run(test(), JumpingLoop())


# ---- ends


def test_a_stream_closed_after_a_whole_frame_says_so(on_loop: OnLoop) -> None:
    async def test() -> None:
        one, two = await pair()
        await one.send(Note(text="last"), stall=LONG)
        one.close()
        assert await two.receive(stall=LONG) == Note(text="last")
        with pytest.raises(StreamClosed, match=r"^here: closed the stream$"):
            await two.receive(stall=LONG)
        await one.wait_closed()
        await two.wait_closed()

    on_loop(test)


@pytest.mark.parametrize("sent", [1, 11, 12, 15, len(CHUNK) - 1])
def test_a_stream_that_ends_within_a_frame_is_lost(on_loop: OnLoop, sent: int) -> None:
    async def test() -> None:
        raw, stream = await half()
        raw.send(CHUNK[:sent])
        raw.close()
        with pytest.raises(StreamLost, match=r"^here: the connection broke$") as lost:
            await take(stream)
        assert not isinstance(lost.value, StreamClosed)
        await stream.wait_closed()

    on_loop(test)


def test_sending_to_somebody_who_is_gone_is_noticed(on_loop: OnLoop) -> None:
    async def test() -> None:
        raw, stream = await half()
        raw.close()
        with pytest.raises(StreamLost):
            await stream.send(Chunk(), bytes(8 << 20), stall=LONG)
        await stream.wait_closed()

    on_loop(test)


def test_whoever_goes_while_we_send_is_noticed(on_loop: OnLoop) -> None:
    async def test() -> None:
        one, two = await pair()
        sending = [asyncio.ensure_future(one.send(Chunk(), bytes(8 << 20), stall=LONG)) for _ in range(3)]
        await two.receive(stall=LONG)
        await end(two)
        for task in sending:
            with pytest.raises(StreamLost):
                await task
        await one.wait_closed()

    on_loop(test)


def test_what_was_sent_before_a_close_arrives_though_the_other_side_still_talks(
    on_loop: OnLoop,
) -> None:
    async def test() -> None:
        one, two = await pair()
        payload = bytes(range(256)) * 400
        await two.send(Chunk(), bytes(SPILL + 40_000), stall=LONG)  # which nobody reads
        await one.send(Chunk(), payload, stall=LONG)
        one.close()
        one.close()
        with pytest.raises(StreamLost):
            await one.send(Note(text="too late"), stall=LONG)
        assert isinstance(await two.receive(stall=LONG), Chunk)
        assert await two.receive_payload(stall=LONG) == payload
        two.close()
        await one.wait_closed()
        await two.wait_closed()

    on_loop(test)


def test_a_closed_stream_lets_go_of_a_peer_that_keeps_its_end_open() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        raw, stream = await half()
        await stream.send(Note(text="last"), stall=LONG)
        stream.close()
        await stream.wait_closed()
        assert loop.time() == pytest.approx(LINGER)
        raw.close()

    run(test(), JumpingLoop())


def test_a_stream_on_which_nothing_was_sent_is_closed_at_once_for_the_other_side_to_know(on_loop: OnLoop) -> None:
    async def test() -> None:
        one, two = await pair()
        await one.send(Note(text="to whoever listens"), stall=LONG)
        two.close()
        await two.wait_closed()
        with pytest.raises(StreamLost):
            await one.send(Chunk(), bytes(8 << 20), stall=LONG)
        await one.wait_closed()

    on_loop(test)


@pytest.mark.parametrize("how", ["close", "abort"])
def test_a_task_that_receives_ends_when_its_own_side_ends_the_stream(on_loop: OnLoop, how: str) -> None:
    async def test() -> None:
        one, two = await pair()
        await one.send(Chunk(), b"pay", stall=LONG)
        between = asyncio.ensure_future(one.receive(stall=LONG))
        await two.receive(stall=LONG)
        await one._pipe.write([NOTE[:3]], LONG)
        await two.receive_payload(stall=LONG)
        within = asyncio.ensure_future(two.receive(stall=LONG))
        await asyncio.sleep(0.01)
        for stream in (one, two):
            getattr(stream, how)()
        for task in (between, within):
            with pytest.raises(StreamLost):
                await task
        await one.wait_closed()
        await two.wait_closed()

    on_loop(test)


def test_a_close_while_somebody_waits_for_a_frame_is_heard_by_the_other_side_and_reads_to_its_end(
    on_loop: OnLoop,
) -> None:
    async def test() -> None:
        one, two = await pair()
        await one.send(Note(text="last"), stall=LONG)
        waiting = asyncio.ensure_future(one.receive(stall=LONG))
        await asyncio.sleep(0)
        one.close()
        with pytest.raises(StreamLost, match="this side"):
            await waiting
        await two.send(Chunk(), bytes(8 << 20), stall=LONG)  # which nobody wants
        assert await two.receive(stall=LONG) == Note(text="last")
        with pytest.raises(StreamClosed):
            await two.receive(stall=LONG)
        await one.wait_closed()
        assert one._closing is not None
        assert one._closing.exception() is None

    on_loop(test)


def test_a_send_cancelled_midway_ends_the_stream(on_loop: OnLoop) -> None:
    async def test() -> None:
        one, two = await pair()
        sending = asyncio.ensure_future(one.send(Chunk(), bytes(8 << 20), stall=LONG))
        await two.receive(stall=LONG)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        with pytest.raises(StreamLost):
            await two.receive_payload(stall=LONG)
        await end(one, two)

    on_loop(test)


def test_a_receive_cancelled_within_a_frame_ends_the_stream() -> None:
    async def test() -> None:
        raw, stream = await half()
        raw.send(CHUNK[:14])
        receiving = asyncio.ensure_future(stream.receive(stall=LONG))
        await asyncio.sleep(1)
        assert stream.bytes_received == 14
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        await stream.wait_closed()
        raw.close()

    run(test(), JumpingLoop())


def test_a_receive_cancelled_between_frames_leaves_the_stream_as_it_was(on_loop: OnLoop) -> None:
    async def test() -> None:
        one, two = await pair()
        receiving = asyncio.ensure_future(two.receive(stall=LONG))
        await asyncio.sleep(0)
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        await one.send(Note(text="next"), stall=LONG)
        assert await two.receive(stall=LONG) == Note(text="next")
        await end(one, two)

    on_loop(test)
