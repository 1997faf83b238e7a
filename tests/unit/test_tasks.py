"""Tasks are ended for certain, and with all that they raise."""

from __future__ import annotations

import asyncio

import loops

from prime_p2p.network import tasks


def test_a_task_that_loses_a_cancellation_is_ended_all_the_same() -> None:
    async def test() -> None:
        lost: list[int] = []

        async def loses(count: int) -> None:
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    if len(lost) == count:
                        raise
                    lost.append(1)

        task = asyncio.ensure_future(loses(2))
        await asyncio.sleep(0)
        await tasks.end([task])
        assert task.cancelled()
        assert lost == [1, 1]

    loops.run(test(), loops.JumpingLoop())


def test_tasks_that_have_ended_or_fail_when_they_are_cancelled_are_no_trouble() -> None:
    async def test() -> None:
        async def fails() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                raise ValueError("while ending")

        over = asyncio.ensure_future(asyncio.sleep(0))
        failing = asyncio.ensure_future(fails())
        await over
        await tasks.end([over, failing])
        assert isinstance(failing.exception(), ValueError)
        await tasks.end([])

    loops.run(test(), loops.JumpingLoop())
