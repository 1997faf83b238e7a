"""A peer that has a heartbeat and cannot be reached is told of, once."""

from __future__ import annotations

import asyncio

import pytest
from nodes import Swarm, run

from prime_p2p.swarm import links
from prime_p2p.swarm.links import Links


def test_a_peer_that_is_there_but_cannot_be_reached_is_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "UNREACHED", 0.0)

    async def test(swarm: Swarm) -> None:
        node, absent = await swarm.node("node"), swarm.peer_id("absent")
        lost: asyncio.Queue[str] = asyncio.Queue()
        mine = Links(node, "demo", 5.0, lambda peer, message: None, lost.put_nowait)
        for _ in range(4):  # as with each look at the heartbeats
            mine.keep([absent])
            assert await asyncio.wait_for(lost.get(), 20.0) == absent
        await mine.close()
        said = [one.getMessage() for one in caplog.records if "cannot be reached" in one.getMessage()]
        assert len(said) == 1
        assert said[0].startswith(f"peer {absent} is there but cannot be reached, so no round is made with it: ")

    run(test)
