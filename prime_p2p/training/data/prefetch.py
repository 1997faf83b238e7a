"""Batches made ahead of time, in a thread: training waits for none of them without saying so."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from prime_p2p.errors import PrimeError
from prime_p2p.training.batch import Batch

AHEAD = 4  # batches that are made before they are asked for
STALL = 1.0  # seconds that training waits for a batch before it says so
SAY_EVERY = 10.0  # seconds between two such lines
CLOSING = 10.0  # seconds that the thread has to end


class GivenUp(PrimeError):
    """Whoever waited for a batch was told to wait no more."""


class Prefetch:
    """Makes the batches at one position, ``stride`` after it and so on; owns a thread from ``start`` to ``close``.

    Asked for another position than the next one, it begins anew from there. What ``make`` raises, ``get`` raises.
    """

    def __init__(self, make: Callable[[int], Batch], stride: int, say: Callable[[str], None]) -> None:
        self._make = make
        self._stride = stride
        self._say = say
        self._changed = threading.Condition()
        self._next: int | None = None  # what the thread makes, or is to make
        self._ready: deque[tuple[int, Batch]] = deque()
        self._error: Exception | None = None
        self._given_up = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def get(self, position: int) -> Batch:
        """The batch at ``position``. Raises GivenUp once ``give_up`` was called and it is not there."""
        began = said = time.monotonic()
        with self._changed:
            self._aim_at(position)
            while not self._ready and self._error is None:
                if self._given_up:
                    raise GivenUp("told to stop while training waited for data")
                if not self._thread.is_alive():
                    raise RuntimeError("nothing makes batches: start comes first, and close last")
                waited = time.monotonic() - began
                if waited >= STALL and (said == began or time.monotonic() - said >= SAY_EVERY):
                    said = time.monotonic()
                    self._say(f"training waits for data: nothing to read for {waited:.0f} s")
                self._changed.wait(STALL)
            if self._error is not None:
                raise self._error
            batch = self._ready.popleft()[1]
            self._changed.notify_all()
        if said != began:
            self._say(f"training goes on: there is data again after {time.monotonic() - began:.0f} s")
        return batch

    def give_up(self) -> None:
        """Wait for no batch any more; may be called from a signal handler, and from any thread."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread, with the batch it is at; one whose source hangs is left to the end of the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(CLOSING)

    def _aim_at(self, position: int) -> None:
        first = self._ready[0][0] if self._ready else self._next
        if first != position:
            self._ready.clear()
            self._next = position
            self._changed.notify_all()

    def _wait_for_work(self) -> int | None:
        """What to make next; None when the thread is to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._next is not None and len(self._ready) < AHEAD))
            return None if self._closed else self._next

    def _run(self) -> None:
        while (position := self._wait_for_work()) is not None:
            try:
                batch = self._make(position)
            except Exception as error:  # noqa: BLE001 - it is raised where the batch is asked for
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                if self._next == position:  # otherwise another one was asked for meanwhile
                    self._ready.append((position, batch))
                    self._next = position + self._stride
                    self._changed.notify_all()
