"""Waiting with a deadline."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from typing import TypeVar

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout

Result = TypeVar("Result")


async def within(seconds: float, awaitable: Awaitable[Result]) -> Result:
    """What ``awaitable`` gives, if it does so within so many seconds.

    Not ``asyncio.wait_for``: before Python 3.12 that drops a cancellation which comes in the very moment of the result
    (gh-86296), and who was cancelled goes on as if nothing had happened. hivemind uses it, so a cancellation that was
    dropped below us counts here all the same; on Python 3.10, which keeps no count, it does not.

    Raises:
        asyncio.TimeoutError: It did not, and was cancelled.
    """
    before = _cancellations()
    async with timeout(seconds):
        result = await awaitable
    if _cancellations() > before:
        raise asyncio.CancelledError
    return result


def _cancellations() -> int:
    """How often the present task has been told to end and has not."""
    task = asyncio.current_task()
    return task.cancelling() if sys.version_info >= (3, 11) and task is not None else 0
