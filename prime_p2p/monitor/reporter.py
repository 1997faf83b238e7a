"""What a peer tells while it runs: event lines for the program that started it, or plain lines for a person."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from prime_p2p.monitor.bars import Bars
from prime_p2p.monitor.events import EventWriter, OutputLost, Progress, State
from prime_p2p.monitor.metrics import RoundMetrics
from prime_p2p.monitor.outlet import Outlet
from prime_p2p.monitor.text import printable

_STANDARD_OUTPUT = 1
_LONGEST = 2000  # characters of a line; parts of some come from other peers
PLAIN_INTERVAL = 10.0  # seconds between two lines about inner steps


class Reporter(Protocol):
    """Where a peer's news go. ``phase`` may be called from another thread than the rest."""

    def ready(self, peer_id: str, addresses: Sequence[str]) -> None: ...

    def progress(self, progress: Progress) -> None: ...

    def phase(self, state: State, group_size: int) -> None: ...

    def outer_step(self, metrics: RoundMetrics) -> None: ...

    def missed(self) -> None:
        """A round came to no outer step; why is in the log, once for many of one reason."""

    def log(self, text: str) -> None: ...

    def note(self, text: str) -> None:
        """Something that a person wants to read and a program has no use for."""

    def long_work(self, text: str) -> None:
        """How far something is that takes long; from any thread, every ten seconds."""

    def done(self, outer_step: int, digest: bytes) -> None: ...


class Silent:
    """A reporter that has no use for anything: others are made of it."""

    def ready(self, peer_id: str, addresses: Sequence[str]) -> None:
        return

    def progress(self, progress: Progress) -> None:
        return

    def phase(self, state: State, group_size: int) -> None:
        return

    def outer_step(self, metrics: RoundMetrics) -> None:
        return

    def missed(self) -> None:
        return

    def log(self, text: str) -> None:
        return

    def note(self, text: str) -> None:
        return

    def long_work(self, text: str) -> None:
        return

    def done(self, outer_step: int, digest: bytes) -> None:
        return


class EventReporter(Silent):
    """Event lines on standard output, see ``monitor.events``."""

    def __init__(self, writer: EventWriter) -> None:
        self._writer = writer
        self._last = Progress(0, 0, 0, None, 0.0, 0, 0, State.JOINING)
        self._lost: OutputLost | None = None

    def ready(self, peer_id: str, addresses: Sequence[str]) -> None:
        self._writer.ready(peer_id, addresses[0] if addresses else "")

    def progress(self, progress: Progress) -> None:
        if self._lost is not None:
            lost, self._lost = self._lost, None
            raise lost
        self._last = progress
        self._writer.progress(progress)

    def phase(self, state: State, group_size: int) -> None:
        self._last = self._last.in_phase(state, group_size)
        try:
            self._writer.progress(self._last)
        except OutputLost as lost:
            self._lost = lost  # for the training thread to see

    def outer_step(self, metrics: RoundMetrics) -> None:
        self._writer.outer_step(metrics)

    def log(self, text: str) -> None:
        self._writer.log(text)

    def long_work(self, text: str) -> None:
        try:
            self._writer.log(text)
        except OutputLost as lost:
            self._lost = lost  # for the training thread to see

    def done(self, outer_step: int, digest: bytes) -> None:
        self._writer.done(outer_step, digest.hex())


class PlainReporter(Silent):
    """A line an outer step on standard output, and one every ten seconds in between."""

    def __init__(self) -> None:
        self._last_line = 0.0
        self._outlet = Outlet(_STANDARD_OUTPUT)

    def ready(self, peer_id: str, addresses: Sequence[str]) -> None:
        self._say(f"peer {peer_id}")
        for address in addresses:
            self._say(f"reachable at {address}")

    def progress(self, progress: Progress) -> None:
        if time.monotonic() - self._last_line >= PLAIN_INTERVAL:
            loss = "-" if progress.loss is None else f"{progress.loss:.4f}"
            self._say(
                f"outer step {progress.outer_step}, inner step {progress.inner_step}/{progress.inner_steps}: "
                f"loss {loss}, {progress.tokens_per_second:,.0f} tokens/s"
            )

    def outer_step(self, metrics: RoundMetrics) -> None:
        loss = "-" if metrics.train_loss is None else f"{metrics.train_loss:.4f}"
        validation = "" if metrics.val_loss is None else f", validation loss {metrics.val_loss:.4f}"
        self._say(
            f"outer step {metrics.outer_step} done: loss {loss}{validation}, group of {len(metrics.group)}, "
            f"{metrics.seconds.total:.1f} s, {metrics.compute_share:.0%} of it computing, "
            f"{metrics.bytes_sent / 1e6:.1f} MB sent, digest {metrics.digest[:12]}"
        )

    def log(self, text: str) -> None:
        self._say(text)

    def note(self, text: str) -> None:
        self._say(text)

    def long_work(self, text: str) -> None:
        self._say(text)

    def done(self, outer_step: int, digest: bytes) -> None:
        self._say(f"the run has ended at outer step {outer_step}, digest {digest.hex()[:12]}")

    def _say(self, text: str) -> None:
        self._last_line = time.monotonic()
        self._outlet.write(printable(text, _LONGEST))


class Several:
    """Reporters that are all told the same, in their order."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self._reporters = reporters

    def ready(self, peer_id: str, addresses: Sequence[str]) -> None:
        for one in self._reporters:
            one.ready(peer_id, addresses)

    def progress(self, progress: Progress) -> None:
        for one in self._reporters:
            one.progress(progress)

    def phase(self, state: State, group_size: int) -> None:
        for one in self._reporters:
            one.phase(state, group_size)

    def outer_step(self, metrics: RoundMetrics) -> None:
        for one in self._reporters:
            one.outer_step(metrics)

    def missed(self) -> None:
        for one in self._reporters:
            one.missed()

    def log(self, text: str) -> None:
        for one in self._reporters:
            one.log(text)

    def note(self, text: str) -> None:
        for one in self._reporters:
            one.note(text)

    def long_work(self, text: str) -> None:
        for one in self._reporters:
            one.long_work(text)

    def done(self, outer_step: int, digest: bytes) -> None:
        for one in self._reporters:
            one.done(outer_step, digest)


def bars_of(reporter: Reporter, json: bool) -> Bars:
    """What shows the long work of a peer that reports so: bars where its plain lines go to a terminal."""
    return Bars(reporter.long_work, None if json else _STANDARD_OUTPUT)


@contextmanager
def open_reporter(json: bool, others: Sequence[Reporter] = ()) -> Iterator[Reporter]:
    """The reporter a peer was asked for, behind ``others``; event lines own standard output until the end."""
    if not json:
        yield Several([*others, PlainReporter()])
        return
    writer = EventWriter.on_stdout()
    try:
        yield Several([*others, EventReporter(writer)])
    finally:
        writer.close()
