"""Ending tasks for certain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN = 3.0  # seconds after which a task that has not ended is cancelled once more


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and return when all of them have ended.

    hivemind waits with ``asyncio.wait_for``, which before Python 3.12 drops a cancellation that comes in the moment of
    its result (see ``deadline.within``): a task of ours that calls it in a loop would go on for ever.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        ended, pending = await asyncio.wait(pending, timeout=AGAIN)
        await asyncio.gather(*ended, return_exceptions=True)  # an exception of theirs is nobody's any more
