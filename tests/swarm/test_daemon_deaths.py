"""Nodes on loopback whose libp2p daemon dies or freezes under them."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import numpy as np
import psutil
import pytest
from node_process import DATA, ECHO, Data, echo, node_process
from nodes import PATIENCE, Swarm, address, daemons, echoes, run, until

import prime_p2p.swarm.swarm as place
from prime_p2p import bootstrap_node
from prime_p2p.allreduce.codec import BlockVector, quantise
from prime_p2p.errors import PrimeError
from prime_p2p.network import daemon_config, supervisor
from prime_p2p.network._hivemind import p2pd_pb2
from prime_p2p.network.node import Node, NodeConfig
from prime_p2p.network.streams import StreamError, StreamLost
from prime_p2p.swarm.gathering import RoundPolicy
from prime_p2p.swarm.swarm import SwarmOptions


def daemon_of(swarm: Swarm, name: str) -> psutil.Process:
    (found,) = (child for child in daemons() if f"-id={swarm.folder / name}" in child.cmdline())
    return found


async def knows(node: Node, *others: Node) -> None:
    """Wait until a node has seen where its daemon is connected to."""

    async def known() -> bool:
        return {other.peer_id for other in others} <= node._board._known.keys()

    await until(known)


async def until_offline(node: Node) -> None:
    """Wait until a node has noticed that its daemon is dead or frozen."""

    async def noticed() -> bool:
        return not await node.check()

    await until(noticed)


async def kill_daemon(swarm: Swarm, name: str, node: Node) -> None:
    """Kill it, and wait until its node has noticed."""
    daemon_of(swarm, name).kill()
    await until_offline(node)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged about daemons."""
    records = [record for record in caplog.records if record.name == supervisor.__name__]
    return [record.getMessage() for record in records if record.levelno >= logging.WARNING]


def test_a_node_whose_daemon_was_killed_is_back_with_all_that_it_was(caplog: pytest.LogCaptureFixture) -> None:
    async def test(swarm: Swarm) -> None:
        one = await swarm.node("one")
        two, three = [await swarm.node(name, await address(one)) for name in ("two", "three")]
        for node in (one, two, three):
            await node.serve(ECHO, DATA, echo)
            await node.publish("key", {"name": node.peer_id}, ttl=10 * PATIENCE)
        everyone = {node.peer_id: {"name": node.peer_id} for node in (one, two, three)}
        before = await one.addresses()
        outwards = await one.open(two.peer_id, ECHO, DATA, timeout=PATIENCE)
        inwards = await two.open(one.peer_id, ECHO, DATA, timeout=PATIENCE)
        for stream in (outwards, inwards):
            await stream.send(Data(), stall=PATIENCE)
            await stream.receive(stall=PATIENCE)

        await knows(one, two, three)
        await kill_daemon(swarm, "one", one)
        for stream in (outwards, inwards):
            with pytest.raises(StreamLost):
                await stream.receive(stall=PATIENCE)
        assert await asyncio.wait_for(one.back(), PATIENCE)

        assert one.alive
        assert one.online
        assert await one.addresses() == before
        assert await echoes(one, two.peer_id)
        assert await echoes(two, one.peer_id)
        assert await echoes(three, one.peer_id)
        assert await one.lookup("key") == everyone
        assert await one.publish("key", {"name": one.peer_id}, ttl=10 * PATIENCE)
        late = await swarm.node("late", *before)
        assert await late.lookup("key") == everyone
        assert len(lines(caplog)) == 2
        assert lines(caplog)[0] == "the libp2p daemon was killed by signal 9; starting another one"
        assert lines(caplog)[1].startswith("the libp2p daemon is back after ")

    run(test)


def test_a_node_without_a_daemon_fails_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_PAUSES", (PATIENCE,))

    async def test(swarm: Swarm) -> None:
        one = await swarm.node("one")
        two = await swarm.node("two", await address(one))
        await one.serve(ECHO, DATA, echo)
        await kill_daemon(swarm, "two", two)
        with pytest.raises(StreamLost, match="the libp2p daemon is gone"):
            await two.open(one.peer_id, ECHO, DATA, timeout=PATIENCE)
        assert not await two.publish("key", {}, ttl=60)
        assert set(await two.lookup("key")) == {two.peer_id}
        await two.serve("test/later", DATA, echo)  # from when there is a daemon again
        assert two.alive
        assert not await two.check()

    run(test)


def test_what_a_node_published_or_kept_for_others_is_found_when_its_daemon_is_back() -> None:
    async def test(swarm: Swarm) -> None:
        keeper = await swarm.node("keeper")
        async with node_process(swarm.folder / "author", await address(keeper)) as author:
            await author.kill()
        await kill_daemon(swarm, "keeper", keeper)
        await keeper.publish("key", {"published": "meanwhile"}, ttl=10 * PATIENCE)
        assert await asyncio.wait_for(keeper.back(), PATIENCE)
        late = await swarm.node("late", await address(keeper))
        assert await late.lookup("names") == {author.peer_id: {"name": "author"}}
        assert await late.lookup("key") == {keeper.peer_id: {"published": "meanwhile"}}

    run(test)


def test_a_record_published_while_there_was_no_daemon_is_given_to_others_when_there_is() -> None:
    async def test(swarm: Swarm) -> None:
        one = await swarm.node("one")
        two = await swarm.node("two", await address(one))
        await kill_daemon(swarm, "two", two)
        assert not await two.publish("key", {"n": 1}, ttl=10 * PATIENCE)
        assert await asyncio.wait_for(two.back(), PATIENCE)
        await two.close()
        assert await one.lookup("key") == {two.peer_id: {"n": 1}}

    run(test)


def test_two_nodes_that_both_lose_their_daemons_find_each_other_again() -> None:
    async def test(swarm: Swarm) -> None:
        one = await swarm.node("one")
        two = await swarm.node("two", await address(one))
        for node in (one, two):
            await node.serve(ECHO, DATA, echo)
        for _ in range(2):
            await knows(one, two)
            await asyncio.gather(kill_daemon(swarm, "one", one), kill_daemon(swarm, "two", two))
            await asyncio.wait_for(asyncio.gather(one.back(), two.back()), PATIENCE)

            async def meet() -> bool:
                try:
                    return await echoes(one, two.peer_id) and await echoes(two, one.peer_id)
                except StreamError:
                    return False

            await until(meet)

    run(test)


def test_a_frozen_daemon_is_replaced(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(supervisor, "_LOOK_EVERY", 0.2)
    monkeypatch.setattr(supervisor, "_ANSWER", 1.0)

    async def test(swarm: Swarm) -> None:
        one = await swarm.node("one")
        two = await swarm.node("two", await address(one))
        await one.serve(ECHO, DATA, echo)
        frozen = daemon_of(swarm, "two")
        frozen.suspend()
        await until_offline(two)
        assert await asyncio.wait_for(two.back(), PATIENCE)
        assert not frozen.is_running()
        assert await echoes(two, one.peer_id)
        assert lines(caplog)[0] == "the libp2p daemon has not answered for 3 s; starting another one"

    run(test)


def test_an_answer_in_the_instant_in_which_its_call_is_cancelled_ends_no_other_call() -> None:
    async def serve(data: bytes, sender: object) -> bytes:
        return data

    async def test(swarm: Swarm) -> None:
        daemon = (await swarm.node("one"))._supervisor.daemon
        control = daemon.p2p._client.control
        call = uuid4()
        handler = p2pd_pb2.AddUnaryHandlerRequest(proto="test/first", balanced=False)
        control._pending_calls[call] = asyncio.get_running_loop().create_future()
        control._pending_calls[call].cancel()
        request = p2pd_pb2.PersistentConnectionRequest(callId=call.bytes, addUnaryHandler=handler)
        await control._pending_messages.put(request)
        await asyncio.wait_for(control.add_unary_handler("test/second", serve), PATIENCE)  # answered after the first
        assert not any(carrier.done() for carrier in daemon._carriers)

    run(test)


def test_a_daemon_that_carries_no_calls_any_more_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    async def test(swarm: Swarm) -> None:
        one = await swarm.node("one")
        two = await swarm.node("two", await address(one))
        await one.publish("key", {"n": 1}, ttl=60)
        two._supervisor.daemon._carriers[0].cancel()

        async def replaced() -> bool:
            return "the libp2p daemon carries no calls of the DHT any more; starting another one" in lines(caplog)

        await until(replaced)
        assert await asyncio.wait_for(two.back(), PATIENCE)
        assert one.peer_id in await two.lookup("key")

    run(test)


def test_a_daemon_that_was_slow_to_answer_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_LOOK_EVERY", 0.2)

    async def test(swarm: Swarm) -> None:
        node = await swarm.node("node")
        slow = daemon_of(swarm, "node")
        slow.suspend()
        await until_offline(node)
        slow.resume()
        assert await asyncio.wait_for(node.back(), PATIENCE)
        assert daemon_of(swarm, "node") == slow

    run(test)


def test_a_node_whose_daemon_cannot_be_started_again_is_not_alive(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "_PAUSES", (0.0, 0.1, 0.1))

    async def test(swarm: Swarm) -> None:
        node = await swarm.node("node")
        spoil(swarm.folder / "node")
        await kill_daemon(swarm, "node", node)
        assert not await asyncio.wait_for(node.back(), PATIENCE)
        assert not node.alive
        assert lines(caplog)[-1] == "the libp2p daemon could not be started again"
        with pytest.raises(StreamLost):
            await node.open(node.peer_id, ECHO, DATA, timeout=PATIENCE)

    run(test)


def spoil(identity: Path) -> None:
    """Have no daemon start with this identity any more."""
    identity.write_bytes(b"no key")


def test_a_bootstrap_node_whose_daemon_cannot_be_started_again_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_PAUSES", (0.0, 0.1))

    async def test(swarm: Swarm) -> None:
        announced: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        config = NodeConfig(swarm.folder / "node")
        living = asyncio.ensure_future(bootstrap_node._live(config, announced.set_result, None, False))
        await asyncio.wait_for(announced, PATIENCE)
        spoil(swarm.folder / "node")
        daemon_of(swarm, "node").kill()
        with pytest.raises(PrimeError, match="cannot be kept running; start the node again"):
            await asyncio.wait_for(living, PATIENCE)

    run(test)


def vectors() -> tuple[BlockVector, BlockVector]:
    """A pseudo-gradient, and room for an update."""
    mine = BlockVector.empty(1024)
    quantise(np.ones(1024, np.float32), mine, 0)
    return mine, BlockVector.empty(1024)


def process_under(peer: place.Swarm) -> psutil.Process:
    (daemon,) = (child for child in daemons() if f"-id={peer.options.identity}" in child.cmdline())
    return daemon


def kill_daemon_of(peer: place.Swarm) -> None:
    """Kill it, and wait until the peer has noticed."""
    process_under(peer).kill()
    wait_until(lambda: not peer.node.online)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("under_way", [False, True])
def test_a_round_is_an_error_where_no_daemon_can_be_started_again(
    under_way: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_PAUSES", (0.0, 0.1))
    options = SwarmOptions(policy=RoundPolicy(patience=5 * PATIENCE, grace=1.0, stall_timeout=2.0))
    with (
        place.Swarm("run", (), replace(options, identity=tmp_path / "one")) as one,
        place.Swarm("run", one.addresses, replace(options, identity=tmp_path / "two")) as two,
        ThreadPoolExecutor(1) as executor,
    ):
        for peer in (one, two):
            peer.enter(b"")
            peer.hold(1, b"d" * 32, 1, expected=True)
        assert one.wait_for_peers(1, PATIENCE)
        gathering = threading.Event()
        one.on_phase = lambda phase, size: gathering.set() if phase == "gathering" else None
        round_ = executor.submit(one.make_round, *vectors(), 1) if under_way else None
        if under_way:
            assert gathering.wait(PATIENCE)
        spoil(tmp_path / "one")
        kill_daemon_of(one)
        if round_ is None:
            round_ = executor.submit(one.make_round, *vectors(), 1)
        with pytest.raises(PrimeError, match="cannot be kept running; start this peer again"):
            round_.result(PATIENCE)


def test_a_round_that_begins_while_there_is_no_daemon_is_made_with_the_others_when_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_PAUSES", (2.0,))
    options = SwarmOptions(policy=RoundPolicy(patience=PATIENCE, grace=1.0, stall_timeout=10.0))
    with (
        place.Swarm("run", (), replace(options, identity=tmp_path / "one")) as one,
        place.Swarm("run", one.addresses, replace(options, identity=tmp_path / "two")) as two,
        ThreadPoolExecutor(2) as executor,
    ):
        for peer in (one, two):
            peer.enter(b"")
            peer.hold(1, b"d" * 32, 1, expected=True)
        assert all(peer.wait_for_peers(1, PATIENCE) for peer in (one, two))
        kill_daemon_of(one)
        rounds = [executor.submit(one.make_round, *vectors(), 1)]
        assert one.call(one.node.back(), PATIENCE)
        wait_until(lambda: one.peer_id not in two._runner._machine._context.lost)
        rounds.append(executor.submit(two.make_round, *vectors(), 1))
        groups = [round_.result(PATIENCE).group for round_ in rounds]
        assert groups[0] is not None
        assert set(groups[0].peer_ids) == {one.peer_id, two.peer_id}
        assert groups[1] == groups[0]


def test_a_peer_that_leaves_while_its_daemon_is_frozen_leaves_nothing(tmp_path: Path) -> None:
    with (
        place.Swarm("run", (), SwarmOptions(identity=tmp_path / "one")) as one,
        place.Swarm("run", one.addresses, SwarmOptions(identity=tmp_path / "two")) as two,
    ):
        for peer in (one, two):
            peer.enter(b"")
            peer.hold(1, b"d" * 32, 1, expected=True)
        assert one.wait_for_peers(1, PATIENCE)
        frozen = process_under(one)
        frozen.suspend()
        one.close()
        assert not frozen.is_running()


def test_a_daemon_that_dies_again_and_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_PAUSES", (0.0, 0.1))

    async def test(swarm: Swarm) -> None:
        node = await swarm.node("node")
        for _ in range(2):
            await kill_daemon(swarm, "node", node)
            assert await asyncio.wait_for(node.back(), PATIENCE)
        await kill_daemon(swarm, "node", node)
        assert not await asyncio.wait_for(node.back(), PATIENCE)

    run(test)


@pytest.mark.parametrize("stage", ["pausing", "starting", "started", "rejoining"])
def test_a_node_that_is_closed_while_its_daemon_is_replaced_leaves_nothing(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(swarm: Swarm) -> None:
        one = await swarm.node("one")
        two = await swarm.node("two", await address(one))
        reached = asyncio.Event()

        async def hold(*_: object) -> None:
            reached.set()
            await asyncio.sleep(PATIENCE)

        if stage == "pausing":
            monkeypatch.setattr(supervisor, "_PAUSES", (PATIENCE,))
            reached.set()
        elif stage == "starting":
            monkeypatch.setattr(daemon_config.P2P, "_ping_daemon", hold)
        elif stage == "started":
            monkeypatch.setattr(supervisor.Board, "create", hold)
        else:
            monkeypatch.setattr(supervisor.Board, "rejoin", hold)
        await kill_daemon(swarm, "two", two)
        await asyncio.wait_for(reached.wait(), PATIENCE)
        await asyncio.wait_for(two.close(), PATIENCE)
        assert len(daemons()) == 1
        assert len(swarm.socket_folders()) == 1
        assert not two.alive
        assert not await two.back()

    run(test)


def test_a_daemon_that_starts_but_serves_nothing_does_not_hold_up_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "_BOARD", 0.5)

    async def test(swarm: Swarm) -> None:
        node = await swarm.node("node")
        create, calls = supervisor.Board.create, 0

        async def hold_once(*arguments: object) -> object:
            nonlocal calls
            calls += 1
            if calls == 1:
                await asyncio.sleep(PATIENCE)
            return await create(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(supervisor.Board, "create", hold_once)
        await kill_daemon(swarm, "node", node)
        assert await asyncio.wait_for(node.back(), PATIENCE)
        assert len(daemons()) == 1
        assert calls == 2

    run(test)


def test_nobody_gets_the_port_of_a_node_whose_daemon_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_PAUSES", (PATIENCE,))

    async def test(swarm: Swarm) -> None:
        node = await swarm.node("node")
        port = int((await address(node)).split("/")[4])
        await kill_daemon(swarm, "node", node)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))

    run(test)
