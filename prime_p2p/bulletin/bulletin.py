"""What a peer has to tell whoever watches: where it is, and its last outer steps, as ready lines of a bounded size."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from itertools import accumulate, islice

from prime_p2p.bulletin.messages import LARGEST_LOSS, LONGEST_LINE, MOST_BYTES, MOST_LINES, line, packed
from prime_p2p.monitor.events import Progress, State
from prime_p2p.monitor.metrics import RoundMetrics, finite
from prime_p2p.monitor.reporter import Silent

MOST_KEPT = 256  # lines
MOST_KEPT_BYTES = 256 * 1024  # of all lines together


class Bulletin(Silent):
    """A ``monitor.reporter.Reporter`` that keeps the news of one peer. May be called from any thread."""

    def __init__(self) -> None:
        self.session = secrets.token_bytes(8)
        self._lock = threading.Lock()
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._last = 0  # number of the newest line
        self._now = Progress(0, 0, 0, None, 0.0, 0, 0, State.JOINING)

    def after(self, session: bytes, number: int) -> tuple[int, bytes]:
        """What somebody lacks who has the lines of a session up to one: the number of the newest line that is in the
        answer, and the answer, whose last line says where the peer is at present."""
        with self._lock:
            first = self._last - len(self._lines)  # the number of the line before the oldest one
            start = max(first, min(number, self._last) if session == self.session else 0)
            lines, now = list(islice(self._lines, start - first, start - first + MOST_LINES - 1)), self._now
        sizes = accumulate(map(len, lines))
        count = max(1, sum(size <= MOST_BYTES for size in sizes))
        lines = lines[:count]
        return start + len(lines), packed([*lines, _now_line(now)])

    def _keep(self, text: bytes) -> None:
        if len(text) > LONGEST_LINE:
            return
        with self._lock:
            self._lines.append(text)
            self._bytes += len(text)
            self._last += 1
            while len(self._lines) > MOST_KEPT or self._bytes > MOST_KEPT_BYTES:
                self._bytes -= len(self._lines.popleft())

    # ---- as a reporter

    def progress(self, progress: Progress) -> None:
        with self._lock:
            self._now = progress

    def phase(self, state: State, group_size: int) -> None:
        with self._lock:
            self._now = self._now.in_phase(state, group_size)

    def outer_step(self, metrics: RoundMetrics) -> None:
        told = metrics.to_json()
        losses = {name: _loss(told[name]) for name in ("train_loss", "val_loss") if name in told}
        self._keep(line("outer_step", told | losses))

    def missed(self) -> None:
        self._keep(line("missed", {"outer_step": self._now.outer_step}))


def _now_line(now: Progress) -> bytes:
    fields = {
        "outer_step": now.outer_step,
        "inner_step": now.inner_step,
        "inner_steps": now.inner_steps,
        "loss": _loss(now.loss),
        "tokens_per_second": finite(now.tokens_per_second) or 0.0,
        "group_size": now.group_size,
        "state": now.state.value,
    }
    return line("now", fields)


def _loss(value: float | None) -> float | None:
    """A loss as it is told: None for one that has grown without bounds, or is none."""
    return value if (value := finite(value)) is not None and abs(value) <= LARGEST_LOSS else None
