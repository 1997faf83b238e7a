"""The application as long as it is open, beside the watcher in one loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from prime_p2p.monitor.text import printable
from prime_p2p.watching.terminal.app import WatchApp
from prime_p2p.watching.watcher import Watcher


async def show(watcher: Watcher) -> None:
    """Show what is watched until somebody has seen enough."""
    app = WatchApp(watcher.view)
    with log_in(app):
        await app.run_async()


class _Notices(logging.Handler):
    """Lines of the log, which would tear the screen, in a corner of it."""

    def __init__(self, app: WatchApp) -> None:
        super().__init__()
        self._app = app
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        text = printable(record.getMessage())
        self._loop.call_soon_threadsafe(lambda: self._app.notify(text, severity="warning", markup=False))


@contextmanager
def log_in(app: WatchApp) -> Iterator[None]:
    """Have lines of the log shown there, and nowhere else, as long as this lasts."""
    root = logging.getLogger()
    former = root.handlers
    root.handlers = [_Notices(app)]
    try:
        yield
    finally:
        root.handlers = former
