"""A peer whose bootstrap address is dead finds those it met before."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest
from node_process import DATA, ECHO, echo
from nodes import PATIENCE, Swarm, address, echoes, run, until

from prime_p2p.errors import Unreachable
from prime_p2p.network import join
from prime_p2p.network.known import KnownPeers


def test_a_restart_works_with_the_bootstrap_node_dead(caplog: pytest.LogCaptureFixture) -> None:
    async def test(swarm: Swarm) -> None:
        bootstrap, file = await swarm.node("bootstrap"), swarm.folder / "peers.json"
        dead = await address(bootstrap)
        other = await swarm.node("other", dead)
        await other.serve(ECHO, DATA, echo)
        node = await swarm.node("node", dead, known=file)
        await other.publish("names", {"name": "other"}, ttl=120)

        async def located() -> bool:
            return node._board.contacts().keys() == {bootstrap.peer_id, other.peer_id}

        await until(located)
        await node.close()
        assert KnownPeers(file).addresses()[other.peer_id] == [(await address(other)).partition("/p2p/")[0]]
        await bootstrap.close()
        with caplog.at_level(logging.WARNING):
            again = await asyncio.wait_for(swarm.node("node", dead, known=file), PATIENCE)
        assert caplog.messages[0].startswith(f"bootstrap peer {dead}: ")
        assert caplog.messages[1] == "no bootstrap peer answers; joined through 1 of the peers known from before"
        assert (await again.lookup("names")) == {other.peer_id: {"name": "other"}}
        assert await echoes(again, other.peer_id)

    run(test)


def test_nobody_waits_long_for_a_silent_bootstrap_node_where_others_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "_SPARED", 0.5)

    async def test(swarm: Swarm) -> None:
        other, file = await swarm.node("other"), swarm.folder / "peers.json"
        peer = swarm.peer_id("nobody")
        node = await swarm.node("node", await address(other), known=file)

        async def located() -> bool:
            return bool(node._board.contacts())

        await until(located)
        await node.close()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            mute = f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}/p2p/{peer}"
            starting = swarm.node("node", mute, known=file, join_timeout=300.0)
            await (await asyncio.wait_for(starting, PATIENCE)).close()
            await other.close()
            with pytest.raises(Unreachable, match="nor does any of 1 peers known from before"):
                await swarm.node("node", mute, known=file, join_timeout=2.0)

    run(test)
