"""When a process of ours has to stop: a signal arrives, or the process that started it is gone."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOP_PATIENCE = 12.0  # seconds to leave in good order before what is left is killed


def stop_with_parent(
    stop: Callable[[], object], descriptor: int = 0, patience: float = STOP_PATIENCE
) -> threading.Thread:
    """Call ``stop`` once the pipe at ``descriptor`` closes, which its writer's death does too, however sudden.

    A process that has not left ``patience`` seconds later is killed together with its group, where it leads one, so
    that nothing outlives the parent. ``stop`` runs on the watching thread; that thread ends with the process.
    """

    def watch() -> None:
        while os.read(descriptor, 4096):
            pass
        timer = threading.Timer(patience, _kill_own_group)
        timer.daemon = True
        timer.start()
        stop()

    thread = threading.Thread(target=watch, name="parent watch", daemon=True)
    thread.start()
    return thread


def _kill_own_group() -> None:
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def end_anyway(code: int, patience: float = STOP_PATIENCE) -> threading.Timer:
    """End this process with an exit code in so many seconds, whatever it waits for then; it may end before."""
    timer = threading.Timer(patience, os._exit, (code,))
    timer.daemon = True
    timer.start()
    return timer


class StopSignals:
    """The requests to stop that this process has received."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.count = 0
        self.notify: Callable[[], object] = lambda: None
        """Called in the main thread at every one; what it raises comes out of whatever that thread is doing."""

    @property
    def insistent(self) -> bool:
        """Somebody asked more than once, and will not wait for good order."""
        return self.count > 1

    def note(self, number: int) -> None:
        self.first = self.first or number
        self.count += 1
        self.notify()


def stop_signals() -> tuple[signal.Signals, ...]:
    """Those that ask a process of ours to leave in good order; a closed terminal does so too, but not under nohup."""
    hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hang_up)


@contextmanager
def noting_stop_signals() -> Iterator[StopSignals]:
    """Note the signals that say stop instead of dying of them; the former handlers come back at the end."""
    received = StopSignals()
    former = {number: signal.signal(number, lambda number, frame: received.note(number)) for number in stop_signals()}
    try:
        yield received
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
