"""The speed between two nodes: what is measured, and who is refused."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest
from nodes import PATIENCE, Swarm, address, run

from prime_p2p.network import speed
from prime_p2p.network.frames import FrameError, Message
from prime_p2p.network.node import Node
from prime_p2p.network.speed import (
    PROTOCOL,
    SPEED,
    AskBytes,
    Counted,
    Go,
    Noise,
    NotMeasured,
    OfferBytes,
    Refused,
    Speed,
)
from prime_p2p.network.streams import Stream, StreamLost, StreamStalled
from prime_p2p.swarm import swarm as peers


async def refusal(node: Node, peer_id: str) -> str:
    """Why a peer sends no bytes."""
    stream = await node.open(peer_id, PROTOCOL, SPEED, timeout=PATIENCE)
    await stream.send(AskBytes(), stall=PATIENCE)
    answer = await stream.receive(stall=PATIENCE)
    stream.abort()
    assert isinstance(answer, Refused)
    return answer.reason


def test_two_nodes_measure_both_ways_until_it_has_been_often_enough() -> None:
    async def test(swarm: Swarm) -> None:
        server = await swarm.node("server")
        await Speed(server).serve()
        client = await swarm.node("client", await address(server))
        other = await swarm.node("other", await address(server))
        mine = Speed(client)
        for _ in range(speed.OF_A_PEER // 2):
            measured = await mine.measure(server.peer_id, PATIENCE)
            assert measured.up > 1
            assert measured.down > 1
        with pytest.raises(NotMeasured, match="often in this minute"):
            await mine.measure(server.peer_id, PATIENCE)
        await asyncio.sleep(speed._SEAT)
        assert (await Speed(other).measure(server.peer_id, PATIENCE)).down > 1

    run(test)


def test_a_peer_measures_with_others() -> None:
    async def test(nodes: Swarm) -> None:
        with peers.Swarm("a-run") as peer:
            client = await nodes.node("client", peer.addresses[0])
            assert (await Speed(client).measure(peer.peer_id, PATIENCE)).down > 1
            await asyncio.to_thread(peer.close)

    run(test)


def test_one_at_a_time_is_measured_with_and_none_in_the_middle_of_a_round() -> None:
    async def test(swarm: Swarm) -> None:
        server = await swarm.node("server")
        reducing = True
        await Speed(server, willing=lambda: not reducing).serve()
        first, second = [await swarm.node(name, await address(server)) for name in ("first", "second")]
        assert await refusal(first, server.peer_id) == "round"
        reducing = False
        stream = await first.open(server.peer_id, PROTOCOL, SPEED, timeout=PATIENCE)
        await stream.send(AskBytes(), stall=PATIENCE)
        await stream.receive(stall=PATIENCE)
        assert await refusal(second, server.peer_id) == "measuring"
        stream.abort()
        await asyncio.sleep(1.5 * speed._SEAT)
        mine = Speed(first)
        measuring = asyncio.ensure_future(mine.measure(server.peer_id, PATIENCE))
        await asyncio.sleep(0)
        with pytest.raises(NotMeasured, match="this peer measures already"):
            await mine.measure(server.peer_id, PATIENCE)
        assert (await measuring).up > 1

    run(test)


def test_who_only_takes_bytes_gets_no_more_than_the_limit() -> None:
    async def test(swarm: Swarm) -> None:
        server = await swarm.node("server")
        await Speed(server).serve()
        client = await swarm.node("client", await address(server))
        received = 0
        for _ in range(2 * speed.OF_A_PEER * speed.LANES):
            stream = await client.open(server.peer_id, PROTOCOL, SPEED, timeout=PATIENCE)
            await stream.send(AskBytes(), stall=PATIENCE)
            while isinstance(message := await stream.receive(stall=PATIENCE), Noise):
                await stream.receive_payload(stall=PATIENCE)
            received += stream.bytes_received
            stream.abort()
            if isinstance(message, Refused):
                break
        assert message == Refused(reason="often")
        assert speed.SIZE < received < speed.OF_A_PEER * speed.SIZE * 1.01

    run(test)


def test_a_peer_that_does_not_measure_or_says_nothing_costs_no_more_than_the_deadline() -> None:
    async def test(swarm: Swarm) -> None:
        server = await swarm.node("server")
        client = await swarm.node("client", await address(server))
        mine = Speed(client)
        with pytest.raises(StreamLost):
            await mine.measure(server.peer_id, PATIENCE)

        answers: list[Message] = []

        async def answer(stream: Stream) -> None:
            for message in answers:
                await stream.send(message, stall=PATIENCE)
            await stream.receive(stall=PATIENCE)
            await stream.receive(stall=PATIENCE)

        await server.serve(PROTOCOL, SPEED, answer)
        with pytest.raises(StreamStalled):
            await mine.measure(server.peer_id, 0.5)
        answers.append(Go())
        with pytest.raises(FrameError, match="something else than noise"):
            await mine.measure(server.peer_id, PATIENCE)

    run(test)


def test_a_slow_link_is_measured_for_a_few_seconds_and_no_longer() -> None:
    async def test(swarm: Swarm) -> None:
        server = await swarm.node("server")
        await Speed(server).serve()
        client = await swarm.node("client", await address(server))
        stream = await client.open(server.peer_id, PROTOCOL, SPEED, timeout=PATIENCE)
        await stream.send(OfferBytes(), stall=PATIENCE)
        assert isinstance(await stream.receive(stall=PATIENCE), Go)
        for _ in range(100):
            await stream.send(Noise(), bytes(100), stall=PATIENCE)
            try:
                counted = await stream.receive(stall=0.1)
            except StreamStalled:
                continue
            assert isinstance(counted, Counted)
            assert 0 < counted.count < 100 * 200
            assert speed.SECONDS - speed._WARM - 0.5 < counted.seconds < speed.SECONDS + 5
            break
        else:
            raise AssertionError("it counts for ever")
        stream.abort()
        with mock.patch.object(speed, "SECONDS", 0.02):  # so that this link is slow
            for _ in range(2):
                await Speed(client).measure(server.peer_id, PATIENCE)

    run(test)
