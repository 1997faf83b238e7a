"""Peers that are set aside, and the limit on what is served."""

from __future__ import annotations

import asyncio

import pytest
from loops import JumpingLoop

from prime_p2p.outer.digest import PIECE
from prime_p2p.state import standing as module
from prime_p2p.state.pace import Pace
from prime_p2p.state.standing import BUSY_BREAK, FIRST_BREAK, LONGEST_BREAK, Standing


def test_a_peer_is_set_aside_for_longer_with_every_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    standing = Standing()
    assert standing.good("a")
    for pause in (FIRST_BREAK, 2 * FIRST_BREAK, 4 * FIRST_BREAK):
        standing.fail("a", "a reason")
        now += pause - 0.1
        assert not standing.good("a")
        now += 0.2
        assert standing.good("a")
        assert standing.good("b")
    for _ in range(100):
        standing.fail("a", "a reason")
    now += LONGEST_BREAK + 0.1
    assert standing.good("a")


def test_a_peer_that_has_nothing_now_is_asked_again_soon_and_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    standing = Standing()
    for _ in range(5):
        standing.later("a")
        assert not standing.good("a")
        now += BUSY_BREAK + 0.1
        assert standing.good("a")
    assert standing.failures("a") == 0


def test_all_who_send_share_one_rate() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        pace = Pace(1e6)
        assert pace.slice == 125_000

        async def send(count: int) -> None:
            for _ in range(count):
                await pace.take(pace.slice)

        began = loop.time()
        await asyncio.gather(send(20), send(20))
        assert 4.8 < loop.time() - began < 5.1

    loop = JumpingLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_without_a_limit_whole_pieces_leave_at_once() -> None:
    pace = Pace(0)
    assert pace.slice == PIECE
    asyncio.run(asyncio.wait_for(pace.take(10**12), 10))
