"""An event loop on a thread of its own, for callers that are not asynchronous."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

_CLOSING = 5.0  # seconds that tasks have to end after they were cancelled


class LoopThread:
    """One uvloop loop on one daemon thread."""

    def __init__(self, name: str = "network") -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float) -> T:
        """Run `coroutine` on the loop and return its result; to be called from other threads.

        Raises:
            TimeoutError: it has not ended within `timeout` seconds, and was cancelled.
        """
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout)
        except concurrent.futures.TimeoutError:
            if future.done():
                raise
            raise TimeoutError(f"not done within {timeout:g} s") from None
        finally:
            future.cancel()

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Start `coroutine` on the loop and return its future, which the caller owns."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    def close(self) -> None:
        """Cancel what still runs, and end loop and thread. May be called again."""
        if self.closed:
            return
        try:
            self.run(_cancel_all(), 2 * _CLOSING)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_CLOSING)
    await asyncio.get_running_loop().shutdown_asyncgens()
