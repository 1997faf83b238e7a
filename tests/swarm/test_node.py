"""Nodes on loopback: streams between them, how they start and how they stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import tempfile
from typing import Any
from unittest import mock

import numpy as np
import pytest
from node_process import DATA, ECHO, Data, echo
from nodes import PATIENCE, Swarm, address, daemons, echoes, run, until

from prime_p2p.errors import BadInput, Unreachable
from prime_p2p.network import board
from prime_p2p.network.node import MAX_STREAMS_OF_A_PEER, Node, NodeConfig
from prime_p2p.network.streams import Stream, StreamClosed, StreamError, StreamLost


def test_two_nodes_exchange_fifty_megabytes_each_way_byte_by_byte() -> None:
    content = np.random.default_rng(0).integers(0, 256, 50 << 20, dtype=np.uint8)

    async def test(swarm: Swarm) -> None:
        received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def take_and_give(stream: Stream) -> None:
            given = asyncio.ensure_future(give(stream, content[::-1].copy()))
            received.set_result(await take(stream))
            await given

        server = await swarm.node("server")
        await server.serve("test/exchange", DATA, take_and_give)
        client = await swarm.node("client", await address(server))
        stream = await client.open(server.peer_id, "test/exchange", DATA, timeout=PATIENCE)
        giving = asyncio.ensure_future(give(stream, content))
        assert await take(stream) == content[::-1].tobytes()
        await giving
        assert await received == content.tobytes()
        stream.close()
        await stream.wait_closed()

    async def give(stream: Stream, array: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        for at in range(0, array.nbytes, 1 << 20):
            await stream.send(Data(), array.data[at : at + (1 << 20)], stall=PATIENCE)

    async def take(stream: Stream) -> bytes:
        buffer = bytearray(content.nbytes)
        at = 0
        while at < len(buffer):
            await stream.receive(stall=PATIENCE)
            stop = at + stream.payload_left
            await stream.receive_into(memoryview(buffer)[at:stop], stall=PATIENCE)
            at = stop
        return bytes(buffer)

    run(test)


def test_what_was_sent_before_a_close_arrives_at_a_slow_peer() -> None:
    async def test(swarm: Swarm) -> None:
        counted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def count(stream: Stream) -> None:
            total = 0
            await asyncio.sleep(0.5)
            with contextlib.suppress(StreamClosed):
                while True:
                    await stream.receive(stall=PATIENCE)
                    total += len(await stream.receive_payload(stall=PATIENCE))
            counted.set_result(total)

        server = await swarm.node("server")
        await server.serve("test/count", DATA, count)
        client = await swarm.node("client", await address(server))
        stream = await client.open(server.peer_id, "test/count", DATA, timeout=PATIENCE)
        for _ in range(30):
            await stream.send(Data(), bytes(1 << 20), stall=PATIENCE)
        stream.close()
        assert await asyncio.wait_for(counted, PATIENCE) == 30 << 20

    run(test)


def test_what_was_sent_before_a_close_arrives_every_time() -> None:
    """The daemon of the sender may reset a stream whose process has left, with what is on its way."""

    async def give(stream: Stream) -> None:
        await stream.receive(stall=PATIENCE)
        for _ in range(16):
            await stream.send(Data(), bytes(1 << 20), stall=PATIENCE)

    async def test(swarm: Swarm) -> None:
        servers = [await swarm.node("one")]
        servers.append(await swarm.node("two", await address(servers[0])))
        for server in servers:
            await server.serve("test/give", DATA, give)
        client = await swarm.node("client", *[await address(server) for server in servers])

        async def take(server: Node) -> int:
            stream = await client.open(server.peer_id, "test/give", DATA, timeout=PATIENCE)
            await stream.send(Data(), stall=PATIENCE)
            total = 0
            with contextlib.suppress(StreamClosed):
                while True:
                    await stream.receive(stall=PATIENCE)
                    total += len(await stream.receive_payload(stall=PATIENCE))
            return total

        for _ in range(40):
            assert await asyncio.gather(*map(take, servers)) == [16 << 20] * 2

    run(test)


def test_a_peer_or_a_protocol_that_is_not_there_is_lost_with_the_reason() -> None:
    async def test(swarm: Swarm) -> None:
        server = await swarm.node("server")
        client = await swarm.node("client", await address(server))
        with pytest.raises(StreamLost, match=f"^{server.peer_id}: no stream: .*protocols not supported") as lost:
            await client.open(server.peer_id, "test/other", DATA, timeout=PATIENCE)
        assert lost.value.peer_id == server.peer_id
        nobody = swarm.peer_id("nobody")
        with pytest.raises(StreamError, match=f"^{nobody}: no stream"):
            await client.open(nobody, ECHO, DATA, timeout=5)
        with pytest.raises(StreamLost, match="no stream"):
            await client.open("not a peer id", ECHO, DATA, timeout=5)

    run(test)


def test_a_handler_that_fails_ends_its_stream_with_one_line_and_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(stream: Stream) -> None:
        await stream.receive(stall=PATIENCE)
        raise LookupError("no such thing")

    async def test(swarm: Swarm) -> None:
        server = await swarm.node("server")
        await server.serve("test/fail", DATA, fail)
        await server.serve(ECHO, DATA, echo)
        client = await swarm.node("client", await address(server))
        stream = await client.open(server.peer_id, "test/fail", DATA, timeout=PATIENCE)
        await stream.send(Data(), stall=PATIENCE)
        with pytest.raises(StreamLost):
            await stream.receive(stall=PATIENCE)
        assert await echoes(client, server.peer_id)
        lines = [line.getMessage() for line in caplog.records if line.levelno >= logging.WARNING]
        assert lines == [f"test/fail: the handler of a stream of {client.peer_id} failed: LookupError('no such thing')"]

    run(test)


def test_a_peer_cannot_open_more_streams_than_it_may(caplog: pytest.LogCaptureFixture) -> None:
    async def test(swarm: Swarm) -> None:
        server = await swarm.node("server")
        await server.serve(ECHO, DATA, echo)
        client = await swarm.node("client", await address(server))
        other = await swarm.node("other", await address(server))
        streams = [
            await client.open(server.peer_id, ECHO, DATA, timeout=PATIENCE) for _ in range(MAX_STREAMS_OF_A_PEER)
        ]
        for stream in streams:
            await stream.send(Data(), stall=PATIENCE)
            await stream.receive(stall=PATIENCE)
        refused = await client.open(server.peer_id, ECHO, DATA, timeout=PATIENCE)
        with pytest.raises(StreamLost):
            await refused.receive(stall=PATIENCE)
        said = f"dropped a stream from {client.peer_id}: it has {MAX_STREAMS_OF_A_PEER} open, of 32 in all"
        assert said in caplog.messages
        assert await echoes(other, server.peer_id)
        streams[0].close()
        await streams[0].wait_closed()

        async def accepted() -> bool:
            with contextlib.suppress(StreamLost):
                return await echoes(client, server.peer_id)
            return False

        await until(accepted)

    run(test)


def test_a_guard_keeps_strangers_out_of_all_protocols_but_those_that_are_open_to_all() -> None:
    async def test(swarm: Swarm) -> None:
        async def nobody(peer_id: str) -> bool:
            return False

        server = await swarm.node("server")
        await server.serve(ECHO, DATA, echo, to_all=True)
        await server.serve("guarded", DATA, echo)
        server.guard(nobody)
        client = await swarm.node("client", await address(server))
        stream = await client.open(server.peer_id, ECHO, DATA, timeout=PATIENCE)
        refused = await client.open(server.peer_id, "guarded", DATA, timeout=PATIENCE)
        with pytest.raises(StreamLost):
            await refused.receive(stall=PATIENCE)
        server.expel(lambda peer_id: False)
        await stream.send(Data(), stall=PATIENCE)
        await stream.receive(stall=PATIENCE)

    run(test)


def test_close_ends_streams_and_handlers_and_may_be_called_again() -> None:
    async def test(swarm: Swarm) -> None:
        server = await swarm.node("server")
        await server.serve(ECHO, DATA, echo)
        client = await swarm.node("client", await address(server))
        stream = await client.open(server.peer_id, ECHO, DATA, timeout=PATIENCE)
        await stream.send(Data(), stall=PATIENCE)
        await stream.receive(stall=PATIENCE)
        await asyncio.gather(server.close(), server.close())
        await server.close()
        assert not server.alive
        with pytest.raises(StreamLost):
            await stream.receive(stall=PATIENCE)
        await client.close()

    run(test)


@pytest.mark.parametrize("stage", ["starting", "started", "joining"])
def test_a_node_cancelled_while_it_starts_leaves_nothing(stage: str) -> None:
    async def test(swarm: Swarm) -> None:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            silent.setblocking(False)
            silent_address = f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}/p2p/{swarm.peer_id('nobody')}"
            starting = asyncio.ensure_future(swarm.node("node", silent_address))

            async def far_enough() -> bool:
                sign = "owner.lock" if stage == "starting" else "p2pd-*.sock"
                return any(list(found.glob(sign)) for found in swarm.socket_folders())

            await until(far_enough)
            if stage == "joining":
                connection, _ = await asyncio.wait_for(loop.sock_accept(silent), PATIENCE)
                connection.close()
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting

        async def gone() -> bool:
            return not daemons()

        await until(gone)

    run(test)


def test_a_node_starts_also_where_temporary_files_have_long_names() -> None:
    async def test(swarm: Swarm) -> None:
        long = swarm.folder / ("long" * 30)
        long.mkdir()
        with mock.patch.object(tempfile, "tempdir", str(long)):
            assert (await swarm.node("node")).alive

    run(test)


def test_a_port_that_is_taken_is_refused_before_anything_else() -> None:
    async def test(swarm: Swarm) -> None:
        node = await swarm.node("node")
        port = int((await address(node)).split("/")[4])
        with pytest.raises(BadInput, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use"):
            await swarm.node("other", port=port)
        assert not (swarm.folder / "other").exists()

    run(test)


def test_a_port_that_was_taken_by_one_who_ends_just_now_is_waited_for() -> None:
    async def test(swarm: Swarm) -> None:
        with socket.create_server(("127.0.0.1", 0)) as ending:
            port = ending.getsockname()[1]
            asyncio.get_running_loop().call_later(0.5, ending.close)
            node = await swarm.node("node", port=port)
        assert await address(node) == f"/ip4/127.0.0.1/tcp/{port}/p2p/{node.peer_id}"

    run(test)


def test_a_node_that_may_be_the_first_starts_alone_and_finds_the_others_once_they_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(board, "_KEEP_EVERY", 0.5)

    async def test(swarm: Swarm) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            port = closed.getsockname()[1]
        second_address = f"/ip4/127.0.0.1/tcp/{port}/p2p/{swarm.peer_id('second')}"
        first = await swarm.node("first", second_address, may_be_first=True)
        second = await swarm.node("second", port=port)
        await second.publish("key", {}, ttl=PATIENCE)

        async def found() -> bool:
            return second.peer_id in await first.lookup("key")

        await until(found)

    run(test)


def test_an_identity_that_is_in_use_is_refused() -> None:
    async def test(swarm: Swarm) -> None:
        await swarm.node("node")
        with pytest.raises(BadInput, match="in use by another peer"):
            await swarm.node("node")

    run(test)


def test_when_no_bootstrap_peer_answers_each_address_is_named_with_its_reason() -> None:
    async def test(swarm: Swarm) -> None:
        node = await swarm.node("node")
        ip, port = (await address(node)).rpartition("/p2p/")[0].rsplit("/", 1)
        with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            addresses = (
                f"{ip}/{port}/p2p/{swarm.peer_id('a')}",
                f"{ip}/{silent.getsockname()[1]}/p2p/{swarm.peer_id('b')}",
                f"{ip}/{closed.getsockname()[1]}/p2p/{swarm.peer_id('c')}",
            )
            with pytest.raises(Unreachable) as unreachable:
                await asyncio.wait_for(swarm.node("lonely", *addresses), 30)
        reasons = str(unreachable.value).removeprefix("no bootstrap peer answers: ").split("; ")
        assert [reason.split(": ")[0] for reason in reasons] == list(addresses)
        assert "peer id mismatch" in reasons[0]
        assert "deadline exceeded" in reasons[1] or "no answer" in reasons[1]
        assert "connection refused" in reasons[2]

    run(test)


def test_one_bootstrap_peer_that_answers_is_enough_and_nobody_waits_for_a_silent_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(swarm: Swarm) -> None:
        one = await swarm.node("one")
        with socket.socket() as closed, socket.create_server(("127.0.0.1", 0)) as silent:
            closed.bind(("127.0.0.1", 0))
            dead, mute = (
                f"/ip4/127.0.0.1/tcp/{end.getsockname()[1]}/p2p/{swarm.peer_id('nobody')}" for end in (closed, silent)
            )
            starting = swarm.node("two", dead, await address(one), mute, join_timeout=300.0)
            two = await asyncio.wait_for(starting, PATIENCE)
        for silent_one in (dead, mute):
            assert any(line.startswith(f"bootstrap peer {silent_one}: ") for line in caplog.messages)
        assert await two.publish("key", {}, ttl=60)

    run(test)


def test_a_node_may_find_itself_among_its_bootstrap_peers() -> None:
    async def test(swarm: Swarm) -> None:
        own = f"/ip4/127.0.0.1/tcp/1/p2p/{swarm.peer_id('node')}"
        node = await swarm.node("node", own)
        assert await node.lookup("key") == {}

    run(test)


@pytest.mark.parametrize(
    "options",
    [
        {"bootstrap": ("",)},
        {"bootstrap": ("localhost:4001",)},
        {"bootstrap": ("/ip4/127.0.0.1/tcp/4001",)},
        {"bootstrap": ("/ip4/127.0.0.1/tcp/4001/p2p/QmcgpsyWgH8Y8ajJz1Cu72KnS5uo2Aa2LpzU7kinSupNKC",)},
        {"bootstrap": ("/ip4/127.0.0.1/tcp/4001/p2p/12D3KooW",)},
        {"bootstrap": ("/ip4/300.0.0.1/tcp/4001/p2p/12D3KooWK9uk86iTg1VjQEvTiKpewt1oyzF5jkQkAaXEM6tqKyaC",)},
        {"announce": ("/ip4/192.0.2.1/tcp/0",)},
        {"announce": ("192.0.2.1:4001",)},
        {"announce": ("/ip4/192.0.2.1/tcp/1/p2p/12D3KooWK9uk86iTg1VjQEvTiKpewt1oyzF5jkQkAaXEM6tqKyaC",)},
        {"hosts": ("localhost",)},
        {"hosts": ("192.0.2.1",)},
        {"port": 70000},
    ],
)
def test_an_address_that_cannot_be_used_is_refused_before_anything_else(options: dict[str, Any]) -> None:
    async def test(swarm: Swarm) -> None:
        with pytest.raises(BadInput):
            await Node.create(NodeConfig(swarm.folder / "node", **options))
        assert not (swarm.folder / "node").exists()

    run(test)


def test_an_announced_address_is_the_one_others_are_given() -> None:
    async def test(swarm: Swarm) -> None:
        node = await swarm.node("node", announce=("/dns4/node.example.org/tcp/31337",))
        assert await node.addresses() == [f"/dns4/node.example.org/tcp/31337/p2p/{node.peer_id}"]

    run(test)
