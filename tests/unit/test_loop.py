"""The background loop: results and errors cross threads, deadlines hold, and closing leaves nothing running."""

from __future__ import annotations

import asyncio
import threading

import pytest

from prime_p2p.network.loop import LoopThread


@pytest.fixture
def loop() -> LoopThread:
    return LoopThread("test-loop")


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


async def fail() -> None:
    raise LookupError("from the loop")


def test_a_coroutine_runs_on_the_loops_thread_and_its_result_comes_back(loop: LoopThread) -> None:
    async def where() -> str:
        return threading.current_thread().name

    assert loop.run(answer(), timeout=60) == 42
    assert loop.run(where(), timeout=60) == "test-loop"
    loop.close()


def test_an_error_comes_back_too(loop: LoopThread) -> None:
    with pytest.raises(LookupError, match="from the loop"):
        loop.run(fail(), timeout=60)
    loop.close()


def test_what_takes_too_long_is_cancelled(loop: LoopThread) -> None:
    cancelled = threading.Event()

    async def sleep() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(TimeoutError, match=r"not done within 0\.05 s"):
        loop.run(sleep(), timeout=0.05)
    assert cancelled.wait(60)
    loop.close()


def test_close_cancels_what_still_runs_and_ends_the_thread(loop: LoopThread) -> None:
    started, cancelled = threading.Event(), threading.Event()

    async def sleep() -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.set()

    sleeping = loop.spawn(sleep())
    assert started.wait(60)
    loop.close()
    loop.close()
    assert cancelled.is_set()
    assert sleeping.cancelled()
    assert "test-loop" not in [thread.name for thread in threading.enumerate()]
