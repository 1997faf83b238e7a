"""Waiting with a deadline, and being cancelled meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import pytest

from prime_p2p.network.deadline import within


def test_it_gives_what_came_in_time() -> None:
    async def test() -> None:
        assert await within(10, asyncio.sleep(0, "result")) == "result"

    asyncio.run(test())


def test_what_does_not_come_in_time_is_cancelled() -> None:
    async def test() -> None:
        future = asyncio.get_running_loop().create_future()
        with pytest.raises(asyncio.TimeoutError):
            await within(0.01, future)
        assert future.cancelled()

    asyncio.run(test())


def test_a_cancellation_counts_even_in_the_moment_in_which_the_result_comes() -> None:
    async def test() -> None:
        future = asyncio.get_running_loop().create_future()

        async def waiting() -> None:
            await within(10, future)
            raise AssertionError("it was cancelled, and went on")

        task = asyncio.create_task(waiting())
        await asyncio.sleep(0)
        future.set_result(None)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(test())


def test_a_cancellation_counts_that_somebody_below_has_dropped() -> None:
    counts = sys.version_info >= (3, 11)  # a task of Python 3.10 does not know how often it was cancelled

    async def test() -> None:
        never = asyncio.get_running_loop().create_future()

        async def careless() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await never

        task = asyncio.create_task(within(10, careless()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() == counts

    asyncio.run(test())
