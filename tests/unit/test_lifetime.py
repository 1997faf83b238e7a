"""Which signals ask a process to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from prime_p2p.lifetime import noting_stop_signals


@pytest.fixture(autouse=True)
def hang_up() -> Iterator[None]:
    former = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, former)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_says_stop_is_noted_and_its_handler_comes_back(number: signal.Signals) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    former = signal.getsignal(number)
    with noting_stop_signals() as received:
        os.kill(os.getpid(), number)
        assert (received.first, received.count) == (number, 1)
    assert signal.getsignal(number) == former


def test_under_nohup_a_closed_terminal_stops_nobody() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with noting_stop_signals() as received:
        os.kill(os.getpid(), signal.SIGHUP)
        assert received.first is None
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_process_that_hangs_ends_anyway() -> None:
    program = (
        "import threading\nfrom prime_p2p.lifetime import end_anyway\nend_anyway(7, 0.1)\nthreading.Event().wait()"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 7
