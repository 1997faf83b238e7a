"""Nodes on loopback, each with a daemon of its own: records, streams, and what happens when some of them die."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import psutil
import pytest
import uvloop
from node_process import DATA, ECHO, Data, echo, node_process

from prime_p2p.errors import BadInput, Unreachable
from prime_p2p.network import board
from prime_p2p.network._hivemind import DHTID, DHTRecord, PeerID
from prime_p2p.network.identity import Identity
from prime_p2p.network.node import MAX_STREAMS_OF_A_PEER, Node, NodeConfig
from prime_p2p.network.records import PREFIX, SignedRecords, pack
from prime_p2p.network.streams import Stream, StreamClosed, StreamError, StreamLost

PATIENCE = 60.0  # seconds: far above what is needed, since the machine may be busy


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for identities and sockets, with a name so short that a socket's path fits."""
    path = Path(tempfile.mkdtemp(prefix="pp", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    yield path
    shutil.rmtree(path)


class Swarm:
    """Nodes of one test, which are closed at its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Swarm:
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self._opened.aclose()

    async def node(self, name: str, *bootstrap: str, **options: Any) -> Node:
        node = await Node.create(NodeConfig(self._folder / name, bootstrap, **options))
        self._opened.push_async_callback(node.close)
        return node


def run(test: Callable[[Swarm], Coroutine[Any, Any, None]], folder: Path) -> None:
    """Run a test on uvloop; afterwards no daemon and no socket is left."""

    async def whole() -> None:
        async with Swarm(folder) as swarm:
            await test(swarm)

    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(whole())
        assert not [child for child in psutil.Process().children() if child.name() == "p2pd"]
        assert not socket_folders(folder)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def socket_folders(folder: Path) -> list[Path]:
    """Where nodes keep the sockets to their daemons."""
    return list(folder.glob("prime-p2p-*"))


async def until(condition: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    """Wait for something that others bring about."""
    deadline = time.monotonic() + PATIENCE
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


async def address(node: Node) -> str:
    return (await node.addresses())[0]


async def echoes(node: Node, peer_id: str, payload: bytes = b"hello") -> bool:
    """Whether a peer that serves `ECHO` sends back what it is sent."""
    stream = await node.open(peer_id, ECHO, DATA, timeout=PATIENCE)
    try:
        await stream.send(Data(), payload, stall=PATIENCE)
        await stream.receive(stall=PATIENCE)
        return await stream.receive_payload(stall=PATIENCE) == payload
    finally:
        stream.close()
        await stream.wait_closed()


# ---- streams


def test_two_nodes_exchange_fifty_megabytes_each_way_byte_by_byte(folder: Path) -> None:
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

    run(test, folder)


def test_what_was_sent_before_a_close_arrives_at_a_slow_peer(folder: Path) -> None:
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

    run(test, folder)


def test_a_peer_or_a_protocol_that_is_not_there_is_lost_with_the_reason(folder: Path) -> None:
    async def test(swarm: Swarm) -> None:
        server = await swarm.node("server")
        client = await swarm.node("client", await address(server))
        with pytest.raises(StreamLost, match=f"^{server.peer_id}: no stream: .*protocols not supported") as lost:
            await client.open(server.peer_id, "test/other", DATA, timeout=PATIENCE)
        assert lost.value.peer_id == server.peer_id
        nobody = Identity.load_or_create(folder / "nobody").peer_id
        with pytest.raises(StreamError, match=f"^{nobody}: no stream"):
            await client.open(nobody, ECHO, DATA, timeout=5)
        with pytest.raises(StreamLost, match="no stream"):
            await client.open("not a peer id", ECHO, DATA, timeout=5)

    run(test, folder)


def test_a_handler_that_fails_ends_its_stream_with_one_line_and_others_go_on(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
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

    run(test, folder)


def test_a_peer_cannot_open_more_streams_than_it_may(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
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
        assert f"{client.peer_id}: refused, it has {MAX_STREAMS_OF_A_PEER} streams open" in caplog.messages
        assert await echoes(other, server.peer_id)
        streams[0].close()
        await streams[0].wait_closed()

        async def accepted() -> bool:
            with contextlib.suppress(StreamLost):
                return await echoes(client, server.peer_id)
            return False

        await until(accepted)

    run(test, folder)


# ---- records


def test_every_node_finds_every_record_in_its_latest_form_until_it_expires(folder: Path) -> None:
    async def test(swarm: Swarm) -> None:
        one = await swarm.node("one")
        assert not await one.publish("key", {"n": 0}, ttl=60)  # there is nobody else to take it
        assert await one.lookup("key") == {one.peer_id: {"n": 0}}
        two = await swarm.node("two", await address(one))
        assert await one.publish("key", {"n": 1, "bytes": b"\x00\xff"}, ttl=60)
        assert await two.publish("key", {"n": 2}, ttl=60)
        expected = {one.peer_id: {"n": 1, "bytes": b"\x00\xff"}, two.peer_id: {"n": 2}}
        assert await one.lookup("key") == expected
        assert await two.lookup("key") == expected
        assert await two.lookup("other key") == {}
        assert await two.publish("short", {}, ttl=0.5)
        await asyncio.sleep(0.6)
        assert await one.lookup("short") == {}
        assert await two.lookup("short") == {}

    run(test, folder)


def test_a_record_too_long_or_for_too_long_is_not_published(folder: Path) -> None:
    async def test(swarm: Swarm) -> None:
        node = await swarm.node("node")
        with pytest.raises(ValueError, match="at most 4096"):
            await node.publish("key", {"fill": bytes(5000)}, ttl=60)
        with pytest.raises(ValueError, match="for 1e\\+09 s"):
            await node.publish("key", {}, ttl=1e9)
        assert await node.lookup("key") == {}

    run(test, folder)


def forged(author: Identity, victim: str, key: str, ttl: float = 60.0) -> DHTRecord:
    """A record under `key` in the name of `victim`, signed by `author`."""
    body = msgpack.packb(pack(key, {"forged": True}))
    record = DHTRecord(DHTID.generate(PREFIX + key).to_bytes(), msgpack.packb(victim), body, time.time() + ttl)
    signed = SignedRecords(author).sign_value(record)
    return DHTRecord(record.key, record.subkey, signed, record.expiration_time)


def test_a_record_forged_in_the_name_of_another_peer_is_dropped(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(swarm: Swarm) -> None:
        alice = await swarm.node("alice")
        bob = await swarm.node("bob", await address(alice))
        mallory = await swarm.node("mallory", await address(alice))
        for node in (alice, bob, mallory):
            await node.publish("key", {"name": node.peer_id}, ttl=30)
        truth = {node.peer_id: {"name": node.peer_id} for node in (alice, bob, mallory)}
        key_id, record = DHTID.generate(PREFIX + "key"), forged(mallory.identity, alice.peer_id, "key")
        protocol = mallory._board._node.protocol

        for peer in (alice, bob):
            stored = await protocol.call_store(
                PeerID.from_base58(peer.peer_id),
                [key_id],
                [record.value],
                expiration_time=[record.expiration_time],
                subkeys=[alice.peer_id],
            )
            assert stored == [False]
        assert "dropped a record: not signed by the peer of its subkey" in caplog.messages
        assert await bob.lookup("key") == truth

        # Nor does anybody believe it when Mallory's own node hands it out.
        protocol.storage.store_subkey(key_id, alice.peer_id, record.value, record.expiration_time)
        assert await bob.lookup("key") == truth
        assert await alice.lookup("key") == truth

    run(test, folder)


def test_a_record_sent_for_the_cache_does_not_hide_the_others(folder: Path) -> None:
    async def test(swarm: Swarm) -> None:
        alice = await swarm.node("alice")
        bob = await swarm.node("bob", await address(alice))
        mallory = await swarm.node("mallory", await address(alice))
        await alice.publish("key", {"name": "alice"}, ttl=30)
        key_id = DHTID.generate(PREFIX + "key")
        record = forged(mallory.identity, mallory.peer_id, "key", ttl=3600)
        for peer in (alice, bob):
            stored = await mallory._board._node.protocol.call_store(
                PeerID.from_base58(peer.peer_id),
                [key_id],
                [record.value],
                expiration_time=[record.expiration_time],
                subkeys=[mallory.peer_id],
                in_cache=True,
            )
            assert stored == [True]
        expected = {alice.peer_id: {"name": "alice"}, mallory.peer_id: {"forged": True}}
        late = await swarm.node("late", await address(bob))
        for node in (alice, bob, late):
            assert await node.lookup("key") == expected

    run(test, folder)


def test_eight_nodes_that_join_at_the_same_moment_see_each_others_records(folder: Path) -> None:
    async def test(swarm: Swarm) -> None:
        bootstrap = await swarm.node("bootstrap")
        first = await address(bootstrap)

        async def join(name: str) -> Node:
            node = await swarm.node(name, first)
            await node.publish("names", {"name": name}, ttl=PATIENCE)
            return node

        nodes = await asyncio.gather(*(join(f"node-{number}") for number in range(8)))
        expected = {node.peer_id for node in nodes}

        async def all_seen() -> bool:
            found = await asyncio.gather(*(node.lookup("names") for node in nodes))
            return all(set(records) == expected for records in found)

        await until(all_seen)

    run(test, folder)


# ---- deaths


def test_peers_that_know_only_the_bootstrap_node_reach_each_other_also_when_it_has_died(folder: Path) -> None:
    async def test(swarm: Swarm) -> None:
        async with node_process(folder / "bootstrap") as bootstrap:
            one, two, three = [await swarm.node(name, bootstrap.address) for name in ("one", "two", "three")]
            for node in (one, two, three):
                await node.serve(ECHO, DATA, echo)
                await node.publish("key", {}, ttl=PATIENCE)
            assert set(await one.lookup("key")) == {one.peer_id, two.peer_id, three.peer_id}
            assert await echoes(one, two.peer_id)
            await bootstrap.kill()

        await two.publish("after", {}, ttl=PATIENCE)
        assert set(await three.lookup("after")) == {two.peer_id}
        assert await echoes(two, one.peer_id)
        assert await echoes(two, three.peer_id)
        late = await swarm.node("late", await address(three))
        await late.publish("after", {}, ttl=PATIENCE)
        assert set(await one.lookup("after")) == {two.peer_id, late.peer_id}
        assert await echoes(late, one.peer_id)

    run(test, folder)


def test_a_frozen_node_does_not_keep_the_others_from_publishing_and_finding(folder: Path) -> None:
    async def test(swarm: Swarm) -> None:
        one = await swarm.node("one")
        two = await swarm.node("two", await address(one))
        async with node_process(folder / "frozen", await address(one)) as frozen:
            await one.publish("key", {"n": 1}, ttl=PATIENCE)
            daemon = frozen.daemon
            frozen.process.send_signal(signal.SIGSTOP)
            daemon.suspend()
            assert await two.publish("key", {"n": 2}, ttl=PATIENCE)
            found = await asyncio.gather(*(node.lookup("key") for node in (one, two)))
            assert found == [{one.peer_id: {"n": 1}, two.peer_id: {"n": 2}}] * 2
            frozen.process.send_signal(signal.SIGCONT)
            daemon.resume()

    run(test, folder)


def test_a_bootstrap_node_that_comes_back_is_found_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "_KEEP_EVERY", 0.5)

    async def test(swarm: Swarm) -> None:
        async with node_process(folder / "bootstrap") as bootstrap:
            here = bootstrap.address
            node = await swarm.node("node", here)
            await bootstrap.kill()
        await node.publish("key", {}, ttl=2 * PATIENCE)
        async with node_process(folder / "bootstrap", port=int(here.split("/")[4])) as again:
            assert again.address == here
            late = await swarm.node("late", here)

            async def found() -> bool:
                return node.peer_id in await late.lookup("key")

            await until(found)

    run(test, folder)


def test_a_node_whose_daemon_died_says_so_and_fails_fast(folder: Path) -> None:
    async def test(swarm: Swarm) -> None:
        one = await swarm.node("one")
        two = await swarm.node("two", await address(one))
        await one.serve(ECHO, DATA, echo)
        stream = await two.open(one.peer_id, ECHO, DATA, timeout=PATIENCE)
        assert two.alive
        (daemon,) = (child for child in psutil.Process().children() if str(folder / "two") in " ".join(child.cmdline()))
        daemon.kill()
        with pytest.raises(StreamLost):
            await stream.receive(stall=PATIENCE)

        async def dead() -> bool:
            return not two.alive

        await until(dead)
        with pytest.raises(StreamLost, match="the libp2p daemon is gone"):
            await two.open(one.peer_id, ECHO, DATA, timeout=PATIENCE)
        assert not await two.publish("key", {}, ttl=60)
        assert set(await two.lookup("key")) == {two.peer_id}

    run(test, folder)


def test_the_daemon_ends_with_the_process_it_belongs_to_and_the_next_node_tidies_up(folder: Path) -> None:
    async def test(swarm: Swarm) -> None:
        async with node_process(folder / "victim") as victim:
            daemon = victim.daemon
            assert daemon.name() == "p2pd"
            await victim.kill()
        await asyncio.to_thread(daemon.wait, 10)
        assert len(socket_folders(folder)) == 1
        await swarm.node("next")
        assert len(socket_folders(folder)) == 1

    run(test, folder)


def test_a_process_that_ends_its_node_leaves_nothing(folder: Path) -> None:
    async def test(swarm: Swarm) -> None:
        async with node_process(folder / "node") as node:
            daemon = node.daemon
            assert socket_folders(folder)
            assert await node.stop() == 0
        assert not daemon.is_running()

    run(test, folder)
    assert [file.name for file in folder.iterdir()] == ["node"]


# ---- starting and stopping


def test_close_ends_streams_and_handlers_and_may_be_called_again(folder: Path) -> None:
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

    run(test, folder)


@pytest.mark.parametrize("sign", ["owner.lock", "p2pd-*.sock", "p2pclient-*.sock"])
def test_a_node_cancelled_while_it_starts_leaves_nothing(folder: Path, sign: str) -> None:
    async def test(swarm: Swarm) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            silent_address = f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}/p2p/{peer(folder, 'nobody')}"
            starting = asyncio.ensure_future(swarm.node("node", silent_address))

            async def far_enough() -> bool:
                return any(list(found.glob(sign)) for found in socket_folders(folder))

            await until(far_enough)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting

        async def gone() -> bool:
            return not [child for child in psutil.Process().children() if child.name() == "p2pd"]

        await until(gone)

    run(test, folder)


def test_a_node_starts_also_where_temporary_files_have_long_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = folder / ("long" * 30)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))

    async def test(swarm: Swarm) -> None:
        assert (await swarm.node("node")).alive

    run(test, folder)


def test_a_port_that_is_taken_is_refused_before_anything_else(folder: Path) -> None:
    async def test(swarm: Swarm) -> None:
        node = await swarm.node("node")
        port = int((await address(node)).split("/")[4])
        with pytest.raises(BadInput, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use"):
            await swarm.node("other", port=port)
        assert not (folder / "other").exists()

    run(test, folder)


def test_an_identity_that_is_in_use_is_refused(folder: Path) -> None:
    async def test(swarm: Swarm) -> None:
        await swarm.node("node")
        with pytest.raises(BadInput, match="in use by another peer"):
            await swarm.node("node")

    run(test, folder)


def peer(folder: Path, name: str) -> str:
    return Identity.load_or_create(folder / name).peer_id


def test_when_no_bootstrap_peer_answers_each_address_is_named_with_its_reason(folder: Path) -> None:
    async def test(swarm: Swarm) -> None:
        node = await swarm.node("node")
        ip, port = (await address(node)).rpartition("/p2p/")[0].rsplit("/", 1)
        with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            addresses = (
                f"{ip}/{port}/p2p/{peer(folder, 'a')}",
                f"{ip}/{silent.getsockname()[1]}/p2p/{peer(folder, 'b')}",
                f"{ip}/{closed.getsockname()[1]}/p2p/{peer(folder, 'c')}",
            )
            with pytest.raises(Unreachable) as unreachable:
                await asyncio.wait_for(swarm.node("lonely", *addresses), 30)
        reasons = str(unreachable.value).removeprefix("no bootstrap peer answers: ").split("; ")
        assert [reason.split(": ")[0] for reason in reasons] == list(addresses)
        assert "peer id mismatch" in reasons[0]
        assert "deadline exceeded" in reasons[1] or "no answer" in reasons[1]
        assert "connection refused" in reasons[2]

    run(test, folder)


def test_one_bootstrap_peer_that_answers_is_enough(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(swarm: Swarm) -> None:
        one = await swarm.node("one")
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            dead = f"/ip4/127.0.0.1/tcp/{closed.getsockname()[1]}/p2p/{peer(folder, 'nobody')}"
            two = await swarm.node("two", dead, await address(one))
        assert any(line.startswith(f"bootstrap peer {dead}: ") for line in caplog.messages)
        assert await two.publish("key", {}, ttl=60)

    run(test, folder)


def test_a_node_may_find_itself_among_its_bootstrap_peers(folder: Path) -> None:
    async def test(swarm: Swarm) -> None:
        own = f"/ip4/127.0.0.1/tcp/1/p2p/{peer(folder, 'node')}"
        node = await swarm.node("node", own)
        assert await node.lookup("key") == {}

    run(test, folder)


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
        {"host": "localhost"},
        {"host": "192.0.2.1"},
        {"port": 70000},
    ],
)
def test_an_address_that_cannot_be_used_is_refused_before_anything_else(folder: Path, options: dict[str, Any]) -> None:
    async def test(swarm: Swarm) -> None:
        with pytest.raises(BadInput):
            await Node.create(NodeConfig(folder / "node", **options))
        assert not (folder / "node").exists()

    run(test, folder)


def test_an_announced_address_is_the_one_others_are_given(folder: Path) -> None:
    async def test(swarm: Swarm) -> None:
        node = await swarm.node("node", announce=("/dns4/node.example.org/tcp/31337",))
        assert await node.addresses() == [f"/dns4/node.example.org/tcp/31337/p2p/{node.peer_id}"]

    run(test, folder)
