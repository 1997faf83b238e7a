"""Live events of a peer: one JSON object a line on its standard output, read by whoever started it.

=============  =========================================================================================
``ready``      peer_id, address: the peer can be reached
``progress``   outer_step, inner_step, inner_steps, loss, tokens_per_second, group_size, bytes_sent, state
``outer_step`` the fields of one line of ``metrics.jsonl``
``log``        text; also how far work is that takes long, every ten seconds
``done``       outer_step, digest: the last one before the process ends
=============  =========================================================================================
"""

from __future__ import annotations

import json
import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from prime_p2p.errors import PrimeError
from prime_p2p.monitor.metrics import RoundMetrics, finite

PROGRESS_INTERVAL = 0.25  # seconds between two progress events of the same state
WRITE_PATIENCE = 10.0  # seconds that a reader may leave the pipe full before it counts as gone
MAX_TEXT = 2000  # characters of a log event
MAX_LINE = 64 * 1024  # bytes of one event that a reader accepts: a group of a few hundred peers fits


class State(str, Enum):
    """What a peer is doing."""

    JOINING = "joining"
    TRAINING = "training"
    GATHERING = "gathering"
    REDUCING = "reducing"
    APPLYING = "applying"
    PAUSED = "paused"
    LEAVING = "leaving"


@dataclass(frozen=True)
class Ready:
    """The peer can be reached at this multiaddress."""

    peer_id: str
    address: str


@dataclass(frozen=True)
class Progress:
    """Where a peer is. ``bytes_sent`` counts from the start of the process; ``loss`` is of the last inner step."""

    outer_step: int
    inner_step: int
    inner_steps: int
    loss: float | None
    tokens_per_second: float
    group_size: int
    bytes_sent: int
    state: State

    def in_phase(self, state: State, group_size: int) -> Progress:
        """The same in another state, and in a group of this size where there is one."""
        return replace(self, state=state, group_size=group_size or self.group_size)


@dataclass(frozen=True)
class Log:
    """Something to tell the reader in one line."""

    text: str


@dataclass(frozen=True)
class Done:
    """The peer has made all outer steps of the run; the last event before it ends."""

    outer_step: int
    digest: str


Event = Ready | Progress | RoundMetrics | Log | Done


class OutputLost(PrimeError):
    """Nobody reads the events any more: the pipe is broken, or has stayed full for too long."""


class EventWriter:
    """Writes events to a file descriptor. Safe to call from any thread; never waits longer than its patience.

    The first event that cannot be delivered raises ``OutputLost`` to its caller, once. Later ones are dropped, so
    that the owner can go on to shut down (or to train) without a guard around every event.
    """

    def __init__(
        self,
        descriptor: int,
        *,
        interval: float = PROGRESS_INTERVAL,
        patience: float = WRITE_PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write to ``descriptor``, which the writer owns from now on; ``interval`` and ``patience`` in seconds."""
        self._descriptor = descriptor
        self._interval = interval
        self._patience = patience
        self._clock = clock
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._last_state: State | None = None
        self._last_progress = 0.0
        self._lost = False

    @classmethod
    def on_stdout(cls) -> EventWriter:
        """Take standard output over: whatever else prints there goes to standard error from now on.

        Child processes that inherit standard output then do not hold the reader's pipe open either.
        """
        descriptor = os.dup(1)
        os.dup2(2, 1)
        return cls(descriptor)

    def ready(self, peer_id: str, address: str) -> None:
        self._write({"event": "ready", "peer_id": peer_id, "address": address})

    def progress(self, progress: Progress) -> None:
        """Tell where the peer is: at once when its state changed, otherwise at most once in an interval."""
        with self._lock:
            now = self._clock()
            changed = progress.state is not self._last_state
            if not changed and now - self._last_progress < self._interval:
                return
            self._last_state, self._last_progress = progress.state, now
        record = asdict(progress) | {"loss": finite(progress.loss), "state": progress.state.value}
        self._write({"event": "progress"} | record, may_drop=not changed)

    def outer_step(self, metrics: RoundMetrics) -> None:
        self._write({"event": "outer_step"} | metrics.to_json())

    def log(self, text: str) -> None:
        self._write({"event": "log", "text": text[:MAX_TEXT]})

    def done(self, outer_step: int, digest: str) -> None:
        self._write({"event": "done", "outer_step": outer_step, "digest": digest})

    def close(self) -> None:
        with self._lock:
            if not self._lost:
                self._lost = True
                os.close(self._descriptor)

    def _write(self, record: dict[str, Any], *, may_drop: bool = False) -> None:
        line = memoryview(json.dumps(record, allow_nan=False).encode() + b"\n")
        with self._lock:
            if self._lost or (may_drop and not self._poll.poll(0)):
                return
            try:
                self._deliver(line)
            except OSError as error:
                self._lost = True
                os.close(self._descriptor)
                raise OutputLost(f"nobody reads the events of this peer any more: {error.strerror or error}") from error

    def _deliver(self, line: memoryview) -> None:
        deadline = self._clock() + self._patience
        while line:
            left = deadline - self._clock()
            if left <= 0 or not self._poll.poll(left * 1000):
                raise TimeoutError(f"the pipe stayed full for {self._patience:.0f} s")
            line = line[os.write(self._descriptor, line[: select.PIPE_BUF]) :]


class EventReader:
    """Cuts the bytes a peer wrote into events. Pure: it is fed what was read, and keeps the rest of a line."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Event]:
        """Events whose last byte is in ``data``, in order.

        Lines that are not an event, or longer than ``MAX_LINE``, are skipped: a library may print on the standard
        output of a peer before the peer has taken it over.
        """
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[: MAX_LINE + 1]
        return [event for line in lines if (event := _parse_event(line)) is not None]


def _parse_event(line: bytes) -> Event | None:
    if len(line) > MAX_LINE:
        return None
    try:
        record = json.loads(line)
        return _PARSERS[record.pop("event")](record)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


_PARSERS: dict[str, Callable[[dict[str, Any]], Event]] = {
    "ready": lambda record: Ready(**record),
    "progress": lambda record: Progress(**record | {"state": State(record["state"])}),
    "outer_step": RoundMetrics.from_json,
    "log": lambda record: Log(**record),
    "done": lambda record: Done(**record),
}
