"""How many watchers a peer answers at a time."""

from __future__ import annotations

import asyncio
from typing import Any

from prime_p2p.bulletin.bulletin import Bulletin
from prime_p2p.bulletin.serving import MOST_OF_A_PEER, MOST_WATCHERS, NewsServer
from prime_p2p.network.frames import Message


class Asking:
    """A stream whose other side holds its place, and asks nothing."""

    def __init__(self, peer_id: str) -> None:
        self.peer_id = peer_id

    async def receive(self, *, stall: float) -> Message:
        await asyncio.sleep(stall)
        raise AssertionError("it was waited for")


def test_no_watcher_takes_more_than_a_few_of_the_places() -> None:
    async def watch() -> None:
        node: Any = None
        server = NewsServer(node, "demo", Bulletin())

        async def answered(peer: str) -> list[asyncio.Task[None]]:
            stream: Any = [Asking(peer) for _ in range(MOST_WATCHERS)]
            tasks = [asyncio.create_task(server._answer(one)) for one in stream]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return [task for task in tasks if not task.done()]

        of_one = await answered("one")
        assert len(of_one) == MOST_OF_A_PEER
        for number in range(MOST_WATCHERS):
            of_one += await answered(f"other-{number}")
        assert len(of_one) == MOST_WATCHERS
        for task in of_one:
            task.cancel()
        await asyncio.gather(*of_one, return_exceptions=True)
        assert len(await answered("one")) == MOST_OF_A_PEER

    asyncio.run(watch())
