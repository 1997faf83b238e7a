"""Nodes that listen on QUIC as well."""

from __future__ import annotations

import socket

import pytest
from node_process import DATA, ECHO, echo
from nodes import PATIENCE, Swarm, echoes, run

from prime_p2p.errors import BadInput
from prime_p2p.network.dial_back import DialBack
from prime_p2p.network.node import Node, NodeConfig


def test_two_nodes_meet_where_one_knows_of_the_other_by_quic_alone() -> None:
    """And a third, which listens on TCP alone, meets both; whoever asks to be dialled back gives its TCP address."""

    async def test(swarm: Swarm) -> None:
        first = await swarm.node("first", quic=True)
        tcp, quic = await first.addresses()
        assert ("/tcp/" in tcp, quic) == (True, tcp.replace("/tcp/", "/udp/").replace("/p2p/", "/quic-v1/p2p/"))
        second = await swarm.node("second", quic, quic=True)
        third = await swarm.node("third", quic)
        for node in (first, second, third):
            await node.serve(ECHO, DATA, echo)
            await DialBack(node).serve()
        for node in (second, third):
            assert all("/quic-v1" in end for end in (await node.connections())[first.peer_id])
            assert await echoes(node, first.peer_id, bytes(1 << 20))
            assert await echoes(first, node.peer_id)
        assert await echoes(third, second.peer_id)
        await second.publish("names", {"name": "second"}, 60.0)
        assert (await third.lookup("names"))[second.peer_id] == {"name": "second"}
        mine = (await second.addresses())[0].partition("/p2p/")[0]
        assert [(reach.address, reach.works) for reach in await DialBack(second).ask([mine], PATIENCE)] == [
            (mine, True)
        ]

    run(test)


def test_a_udp_port_that_is_taken_is_named() -> None:
    async def test(swarm: Swarm) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            with pytest.raises(BadInput, match=f"port {port}: Address already in use"):
                await Node.create(NodeConfig(swarm.folder / "node", port=port, quic=True))
            await swarm.node("tcp", port=port)

    run(test)


@pytest.mark.parametrize("announce", ["/dns4/a.example/udp/31337", "/ip4/192.0.2.1/udp/0/quic-v1", "/dns4/a.example"])
def test_what_nobody_could_dial_is_not_announced(announce: str) -> None:
    async def test(swarm: Swarm) -> None:
        with pytest.raises(BadInput, match="announced"):
            await Node.create(NodeConfig(swarm.folder / "node", announce=(announce,), quic=True))
        both = ("/dns4/a.example/tcp/31337", "/dns4/a.example/udp/31337/quic-v1")
        node = await swarm.node("both", announce=both, quic=True)
        assert await node.addresses() == [f"{address}/p2p/{node.peer_id}" for address in both]

    run(test)
