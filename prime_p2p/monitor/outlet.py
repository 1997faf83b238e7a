"""Lines for somebody who may read them late or not at all: a closed terminal, a full pipe, a program that has left."""

from __future__ import annotations

import os
import select
import threading
import time
from contextlib import suppress

PATIENCE = 0.5  # seconds that a line waits for room, unless the one before it has found none
_ERASE = "\r\x1b[K"  # what is on the line of a terminal where the cursor is

_drawn = threading.Event()  # a terminal of this process ends with something that was drawn


class Outlet:
    """Whole lines to a file descriptor, from any thread. What nobody takes is dropped: it is no reason to stop."""

    def __init__(self, descriptor: int, patience: float = PATIENCE) -> None:
        self._descriptor = descriptor
        self._patience = patience
        self._terminal = os.isatty(descriptor)
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._stuck = False
        self._torn = False  # the last line ended before its end

    def write(self, line: str) -> None:
        """Write a line, or drop it where there is no room for it in time. It takes the place of what is drawn."""
        erase = _ERASE if self._terminal and _drawn.is_set() else ""
        self._put(f"{erase}{line}\n", self._patience)

    def draw(self, text: str) -> None:
        """Have this as the last line of a terminal, for as long as no other takes its place; no text erases it."""
        if text or _drawn.is_set():
            self._put(_ERASE + text, 0.0)
        if text:
            _drawn.set()
        else:
            _drawn.clear()

    def _put(self, text: str, patience: float) -> None:
        with self._lock, suppress(OSError):  # nobody reads any more
            data = memoryview(f"{chr(10) * self._torn}{text}".encode(errors="backslashreplace"))
            deadline = time.monotonic() + (0.0 if self._stuck else patience)
            while data and not self._wait_until(deadline):
                data = data[os.write(self._descriptor, data[: select.PIPE_BUF]) :]
                self._torn = bool(data)

    def _wait_until(self, deadline: float) -> bool:
        """Wait for room; whether there is none at the deadline."""
        self._stuck = not self._poll.poll(1000 * max(0.0, deadline - time.monotonic()))
        return self._stuck
