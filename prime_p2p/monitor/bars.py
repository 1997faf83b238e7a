"""How long work is shown: a bar on a terminal, a line every ten seconds elsewhere, and nothing while it is short.

This is not rich's: a stopped terminal or a full pipe would hold up whatever it draws from, and what others print at the
same time would have to go through it. A bar goes out as all lines do, through an ``Outlet``, which nobody waits for.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from prime_p2p.long_work import Advance
from prime_p2p.monitor.outlet import Outlet
from prime_p2p.monitor.text import duration, printable, size

REDRAW = 0.25  # seconds between two drawings of a bar
LINES = 10.0  # seconds between two lines, and that work takes at least for its end to be worth one
_WINDOW = 30.0  # seconds that the rate is measured over
_BAR = 24  # columns
_COLUMNS = 80  # of a terminal that does not say how many it has
_STANDARD_ERROR = 2


class Work:
    """A piece of work that takes long. ``advance`` may be called from any thread."""

    def __init__(self, what: str, total: int | None, unit: str, now: float) -> None:
        """``total`` in ``unit``, where it is known; ``now`` in seconds."""
        self._what = printable(what)
        self._total = total
        self._unit = unit
        self._began = now
        self._lock = threading.Lock()
        self._done = 0
        self._seen = deque([(now, 0)])

    def advance(self, count: int) -> None:
        with self._lock:
            self._done += count

    def elapsed(self, now: float) -> float:
        """Seconds since it began."""
        return now - self._began

    def line(self, now: float) -> str:
        """How far it is, in a line."""
        return f"{self._what}: {', '.join(self._figures(now))}"

    def bar(self, now: float, columns: int) -> str:
        """The same for a terminal, at most so many columns wide."""
        words = [self._what, *([self._drawn()] if self._total else []), *self._figures(now)]
        return "  ".join(words)[:columns]

    def end(self, now: float) -> str:
        """That it is done."""
        did = f", {self._counted(self._done)}" if self._unit else ""
        return f"{self._what}: done{did} in {duration(self.elapsed(now))}"

    def _drawn(self) -> str:
        full = round(_BAR * min(1.0, self._done / (self._total or 1)))
        return "━" * full + "─" * (_BAR - full)

    def _figures(self, now: float) -> list[str]:
        done, rate = self._done, self._rate(now)
        if not self._unit:
            return [f"{duration(self.elapsed(now))} so far"]
        if not self._total:
            return [self._counted(done), *self._paced(rate), f"{duration(self.elapsed(now))} so far"]
        left = [f"{duration((self._total - done) / rate)} left"] if rate and done < self._total else []
        share = f"{100 * done // self._total} %"
        of_all = size(done) if self._unit == "bytes" else f"{done:,}"
        return [share, f"{of_all} of {self._counted(self._total)}", *self._paced(rate), *left]

    def _counted(self, count: int) -> str:
        return size(count) if self._unit == "bytes" else f"{count:,} {self._unit}"

    def _paced(self, rate: float) -> list[str]:
        if not rate:
            return []
        return [f"{size(rate)}/s" if self._unit == "bytes" else f"{rate:,.3g} {self._unit}/s"]

    def _rate(self, now: float) -> float:
        """Units a second, of late."""
        self._seen.append((now, self._done))
        while len(self._seen) > 2 and self._seen[1][0] <= now - _WINDOW:
            self._seen.popleft()
        since, before = self._seen[0]
        return (self._done - before) / (now - since) if now > since else 0.0


class Display(Protocol):
    """Where work is shown, by one thread at a time."""

    interval: float
    """Seconds from one showing to the next, and to the first."""

    def show(self, work: Work, now: float) -> None: ...

    def end(self, work: Work, now: float, done: bool) -> None:
        """It is over, and ``done`` or not."""


class LinesDisplay:
    """Lines that are handed to ``say``."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.interval = LINES
        self._say = say

    def show(self, work: Work, now: float) -> None:
        self._say(work.line(now))

    def end(self, work: Work, now: float, done: bool) -> None:
        if done and work.elapsed(now) >= LINES:
            self._say(work.end(now))


class TerminalDisplay:
    """A bar at the bottom of a terminal, gone when the work is over; work that took long leaves a line."""

    def __init__(self, descriptor: int, say: Callable[[str], None]) -> None:
        self.interval = REDRAW
        self._descriptor = descriptor
        self._outlet = Outlet(descriptor)
        self._lines = LinesDisplay(say)

    def show(self, work: Work, now: float) -> None:
        self._outlet.draw(work.bar(now, _columns(self._descriptor) - 1))

    def end(self, work: Work, now: float, done: bool) -> None:
        self._outlet.draw("")
        self._lines.end(work, now, done)


def _columns(descriptor: int) -> int:
    try:
        return os.get_terminal_size(descriptor).columns or _COLUMNS
    except OSError:  # it has just been closed
        return _COLUMNS


class Bars:
    """A ``long_work.Watch`` that shows work: on a terminal at ``descriptor``, or else by lines handed to ``say``."""

    def __init__(
        self,
        say: Callable[[str], None],
        descriptor: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``say`` may be called from any thread, and must not wait for long."""
        self._clock = clock
        self._lines = LinesDisplay(say)
        terminal = descriptor is not None and os.isatty(descriptor) and os.environ.get("TERM", "dumb") != "dumb"
        self._display: Display = (
            TerminalDisplay(descriptor, say) if terminal and descriptor is not None else self._lines
        )

    @contextmanager
    def __call__(
        self, what: str, total: int | None = None, unit: str = "bytes", *, aside: bool = False
    ) -> Iterator[Advance]:
        work = Work(what, total, unit, self._clock())
        display = self._lines if aside else self._display
        over = threading.Event()
        showing = threading.Thread(target=self._show, args=(work, display, over), name="progress", daemon=True)
        showing.start()
        done = False
        try:
            yield work.advance
            done = True
        finally:
            over.set()
            showing.join()
            display.end(work, self._clock(), done)

    def _show(self, work: Work, display: Display, over: threading.Event) -> None:
        while not over.wait(display.interval):
            display.show(work, self._clock())


def on_standard_error() -> Bars:
    """For a command that prints what it is asked for on standard output."""
    return Bars(Outlet(_STANDARD_ERROR).write, _STANDARD_ERROR)
