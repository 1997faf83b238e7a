"""Event loops for tests: the two kinds that are supported, and one whose clock jumps over every wait."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": uvloop.new_event_loop,
}


def run(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """Run a coroutine on a loop of its own; no task may be left when it ends."""
    try:
        result = loop.run_until_complete(coroutine)
        loop.run_until_complete(asyncio.sleep(0))  # callbacks of what was closed last
        left = asyncio.all_tasks(loop)
        assert not left, left
        return result
    finally:
        loop.close()


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop that never waits: when nothing is ready its clock jumps to the next timer.

    What happens between processes of this machine takes no time on this clock, so tests of deadlines are exact.
    """

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_JumpingSelector(self._jump))

    def time(self) -> float:
        return self._now

    def _jump(self, seconds: float) -> None:
        self._now += seconds


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout:
            self._jump(timeout)
        return ready
