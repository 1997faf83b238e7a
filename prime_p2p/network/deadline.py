"""Waiting with a deadline."""

from __future__ import annotations

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
    (gh-86296), and who was cancelled goes on as if nothing had happened.

    Raises:
        asyncio.TimeoutError: It did not, and was cancelled.
    """
    async with timeout(seconds):
        return await awaitable
