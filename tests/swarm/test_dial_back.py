"""Peers that ask each other whether they can be reached, on loopback."""

from __future__ import annotations

import asyncio
import re
import socket

from nodes import Swarm, address, run

from prime_p2p.network.dial_back import NOT_YOURS, DialBack, Reach

PATIENCE = 20.0


def test_an_address_of_mine_works_and_what_is_not_there_does_not() -> None:
    async def test(swarm: Swarm) -> None:
        server = await swarm.node("server")
        await DialBack(server).serve()
        node = await swarm.node("node", await address(server))
        mine = (await address(node)).partition("/p2p/")[0]
        port = mine.rpartition("/")[2]
        with socket.socket() as closed, socket.create_server(("127.0.0.1", 0)) as silent:
            closed.bind(("127.0.0.1", 0))
            nobody, mute = (f"/ip4/127.0.0.1/tcp/{end.getsockname()[1]}" for end in (closed, silent))
            reaches = await DialBack(node).ask([mine, f"/ip4/0.0.0.0/tcp/{port}", nobody, mute, mine], PATIENCE)
            silent.setblocking(False)
            silent.accept()[0].close()
        assert reaches == [
            Reach(mine, True, ""),
            Reach(nobody, False, "Connection refused"),
            Reach(mute, False, "no answer within 3 s"),
        ]

    run(test)


def test_nothing_is_tried_but_where_the_asking_peer_is() -> None:
    async def test(swarm: Swarm) -> None:
        server = await swarm.node("server")
        await DialBack(server).serve()
        node = await swarm.node("node", await address(server))
        with socket.create_server(("127.0.0.2", 0)) as other:
            other.setblocking(False)
            port = other.getsockname()[1]
            asked = [f"/ip4/127.0.0.2/tcp/{port}", f"/ip6/::/tcp/{port}", "/ip4/127.0.0.1/udp/1", "/ip4/x/tcp/1"]
            reaches = await DialBack(node).ask(asked, PATIENCE)
            try:
                other.accept()
            except BlockingIOError:
                pass
            else:
                raise AssertionError("it was tried")
        assert [(reach.address, reach.works) for reach in reaches] == [(one, False) for one in asked]
        assert [reach.reason for reach in reaches[:2]] == [NOT_YOURS] * 2
        assert re.match("only TCP", reaches[2].reason)

    run(test)


def test_a_name_is_tried_where_it_leads_to_the_asking_peer_and_one_answer_that_it_works_is_enough() -> None:
    async def test(swarm: Swarm) -> None:
        servers = [await swarm.node("one")]
        servers.append(await swarm.node("two", await address(servers[0])))
        for server in servers:
            await DialBack(server).serve()
        node = await swarm.node("node", *[await address(server) for server in servers])
        port = (await address(node)).split("/")[4]
        name = f"/dns4/localhost/tcp/{port}/p2p/{node.peer_id}"
        assert await DialBack(node).ask([name], PATIENCE) == [Reach(name, True, "")]

    run(test)


def test_who_asks_too_often_or_alone_is_told_nothing() -> None:
    async def test(swarm: Swarm) -> None:
        server = await swarm.node("server")
        await DialBack(server).serve()
        assert await DialBack(server).ask(["/ip4/0.0.0.0/tcp/1"], PATIENCE) == []
        node = await swarm.node("node", await address(server))
        asking = DialBack(node)
        assert await asking.ask([], PATIENCE) == await asking.ask(["/ip4/" + "0" * 400], PATIENCE) == []
        answers = await asyncio.gather(*(asking.ask(["/ip4/0.0.0.0/tcp/1"], PATIENCE) for _ in range(9)))
        assert sum(bool(answer) for answer in answers) == 6

    run(test)
