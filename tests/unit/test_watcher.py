"""Whom a watcher asks for news, and for how long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from watched_runs import START, beat, now, peer_id

from prime_p2p.bulletin.messages import NewsLines, line, packed
from prime_p2p.network.frames import Message
from prime_p2p.swarm.membership import LEFT, Heartbeat
from prime_p2p.watching import watcher as watchers
from prime_p2p.watching.watcher import Watcher


class Answering:
    """A stream whose other side always has an answer."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def send(self, message: Message, *, stall: float) -> None:
        self.asked.set()

    async def receive(self, *, stall: float) -> Message:
        return NewsLines(session=b"session", last=1)

    async def receive_payload(self, *, stall: float) -> bytes:
        return packed([line("now", now(0, 5).model_dump(mode="json"))])

    def close(self) -> None:
        return


class Node:
    """As much of a node as there is below a watcher."""

    def __init__(self, stream: Answering) -> None:
        self._stream = stream

    async def open(self, *_: Any, timeout: float) -> Answering:
        return self._stream


def test_a_peer_that_has_left_is_asked_no_more_though_it_goes_on_answering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "ASK_EVERY", 0.001)

    async def watch() -> None:
        stream = Answering()
        node: Any = Node(stream)
        watcher = Watcher(node, "demo")
        watcher.view.looked({peer_id(0): beat(0, 5, START)}, START)
        asking = asyncio.create_task(watcher._keep_asking(peer_id(0)))
        await asyncio.wait_for(stream.asked.wait(), 10)
        watcher.view.looked({peer_id(0): Heartbeat(state=LEFT, sent_at=START + 1)}, START + 1)
        await asyncio.wait_for(asking, 10)

    asyncio.run(watch())
