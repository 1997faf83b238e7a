"""Nodes on loopback of which some die, freeze or come back."""

from __future__ import annotations

import asyncio
import signal

import pytest
from node_process import DATA, ECHO, echo, node_process
from nodes import PATIENCE, Swarm, address, echoes, run, until

from prime_p2p.network import board


def test_peers_that_know_only_the_bootstrap_node_reach_each_other_also_when_it_has_died() -> None:
    async def test(swarm: Swarm) -> None:
        async with node_process(swarm.folder / "bootstrap") as bootstrap:
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

    run(test)


def test_a_frozen_node_keeps_nobody_from_publishing_and_finding_and_is_found_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(board, "_KEEP_EVERY", 1.0)

    async def test(swarm: Swarm) -> None:
        one = await swarm.node("one")
        two = await swarm.node("two", await address(one))
        async with node_process(swarm.folder / "frozen", await address(one)) as frozen:
            await one.publish("key", {"n": 1}, ttl=PATIENCE)
            daemon = frozen.daemon
            frozen.process.send_signal(signal.SIGSTOP)
            daemon.suspend()
            assert await two.publish("key", {"n": 2}, ttl=PATIENCE)
            found = await asyncio.gather(*(node.lookup("key") for node in (one, two)))
            assert found == [{one.peer_id: {"n": 1}, two.peer_id: {"n": 2}}] * 2
            known = one._board._node.protocol.routing_table.peer_id_to_uid
            assert frozen.peer_id not in map(str, known)
            frozen.process.send_signal(signal.SIGCONT)
            daemon.resume()

            async def found_again() -> bool:
                return frozen.peer_id in map(str, known)

            await until(found_again)

    run(test)


def test_a_bootstrap_node_that_comes_back_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "_KEEP_EVERY", 0.5)

    async def test(swarm: Swarm) -> None:
        async with node_process(swarm.folder / "bootstrap") as bootstrap:
            here = bootstrap.address
            node = await swarm.node("node", here)
            await bootstrap.kill()
        await node.publish("key", {}, ttl=2 * PATIENCE)
        async with node_process(swarm.folder / "bootstrap", port=int(here.split("/")[4])) as again:
            assert again.address == here
            late = await swarm.node("late", here)

            async def found() -> bool:
                return node.peer_id in await late.lookup("key")

            await until(found)

    run(test)


def test_the_daemon_and_its_sockets_go_with_the_process_they_belong_to() -> None:
    async def test(swarm: Swarm) -> None:
        async with node_process(swarm.folder / "victim") as victim:
            daemon = victim.daemon
            assert daemon.name() == "p2pd"
            await victim.kill()
        await asyncio.to_thread(daemon.wait, 10)

        async def tidy() -> bool:
            return not swarm.socket_folders()

        await until(tidy)

    run(test)


def test_a_process_that_ends_its_node_leaves_nothing() -> None:
    async def test(swarm: Swarm) -> None:
        async with node_process(swarm.folder / "node") as node:
            daemon = node.daemon
            assert swarm.socket_folders()
            assert await node.stop() == 0
        assert not daemon.is_running()
        assert [file.name for file in swarm.folder.iterdir()] == ["node"]

    run(test)
