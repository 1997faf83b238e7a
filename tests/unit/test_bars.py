"""How long work is shown, on a real terminal and elsewhere."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import termios
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from prime_p2p.monitor import bars
from prime_p2p.monitor.bars import Bars, LinesDisplay, TerminalDisplay, Work
from prime_p2p.monitor.outlet import Outlet

ERASE = "\r\x1b[K"
PATIENCE = 30


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """A terminal of 100 columns: what is read at the first descriptor is what its user sees of the second."""
    monkeypatch.setenv("TERM", "xterm")
    seen, descriptor = os.openpty()
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    yield seen, descriptor
    os.close(seen)
    os.close(descriptor)


def read(descriptor: int) -> str:
    """What there is to read, without waiting."""
    os.set_blocking(descriptor, False)
    found = b""
    with suppress(BlockingIOError):
        while piece := os.read(descriptor, 1 << 16):
            found += piece
    return found.decode()


def half_done() -> Work:
    """20 s old, with 300 MB of 600 MB, at 15 MB/s."""
    work = Work("fetching", 600_000_000, "bytes", now=100.0)
    work.advance(300_000_000)
    return work


def test_a_line_has_bytes_the_rate_and_the_time_left() -> None:
    assert half_done().line(120.0) == "fetching: 50 %, 300 MB of 600 MB, 15.0 MB/s, 0:20 left"


def test_a_bar_has_the_same_and_fits_the_terminal() -> None:
    bar = f"fetching  {'━' * 12}{'─' * 12}  50 %  300 MB of 600 MB  15.0 MB/s  0:20 left"
    assert half_done().bar(120.0, 100) == bar
    assert half_done().bar(120.0, 30) == bar[:30]


def test_without_a_total_there_is_the_time_so_far() -> None:
    work = Work("replaying", None, "updates", now=0.0)
    work.advance(30)
    assert work.line(15.0) == "replaying: 30 updates, 2 updates/s, 0:15 so far"
    compiling = Work("compiling the model", None, "", now=0.0)
    assert compiling.line(70.0) == "compiling the model: 1:10 so far"
    assert compiling.end(71.0) == "compiling the model: done in 1:11"


def test_the_time_left_goes_by_the_last_half_minute() -> None:
    work = Work("fetching", 1000, "pieces", now=0.0)
    work.advance(500)
    for now in range(0, 101, 10):  # nothing comes any more
        line = work.line(float(now))
    assert line == "fetching: 50 %, 500 of 1,000 pieces"
    work.advance(30)
    assert work.line(110.0) == "fetching: 53 %, 530 of 1,000 pieces, 1 pieces/s, 7:50 left"


def test_what_others_have_named_is_printable() -> None:
    assert "\x1b" not in Work("fetching \x1b[2J", 10, "bytes", 0.0).line(1.0)


def test_elsewhere_work_that_is_over_soon_says_nothing_and_other_work_that_it_is_done() -> None:
    said: list[str] = []
    display = LinesDisplay(said.append)
    display.end(half_done(), 109.0, done=True)
    display.end(half_done(), 131.0, done=False)
    assert said == []
    display.show(half_done(), 110.0)
    display.end(half_done(), 131.0, done=True)
    assert said == ["fetching: 50 %, 300 MB of 600 MB, 30.0 MB/s, 0:10 left", "fetching: done, 300 MB in 0:31"]


def test_a_bar_is_drawn_in_place_and_is_gone_at_the_end(terminal: tuple[int, int]) -> None:
    seen, descriptor = terminal
    display = TerminalDisplay(descriptor, Outlet(descriptor).write)
    work = half_done()
    display.show(work, 105.0)
    display.show(work, 106.0)
    display.end(work, 106.0, done=True)
    assert read(seen) == ERASE + work.bar(105.0, 99) + ERASE + work.bar(106.0, 99) + ERASE
    display.show(work, 120.0)
    display.end(work, 120.0, done=True)
    assert read(seen).endswith(f"{ERASE}fetching: done, 300 MB in 0:20\r\n")


def test_a_line_takes_the_place_of_the_bar_and_none_runs_into_it(terminal: tuple[int, int]) -> None:
    seen, descriptor = terminal
    display, other = TerminalDisplay(descriptor, lambda line: None), Outlet(descriptor)
    work = half_done()
    display.show(work, 105.0)
    other.write("news")
    display.show(work, 105.0)
    display.end(work, 105.0, done=True)
    other.write("more news")
    bar = ERASE + work.bar(105.0, 99)
    assert read(seen) == f"{bar}{ERASE}news\r\n{bar}{ERASE}more news\r\n"


def test_a_pipe_gets_lines_as_time_goes_by_though_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "LINES", 0.01)
    reading, writing = os.pipe()
    second = threading.Event()
    outlet, said = Outlet(writing), 0

    def say(line: str) -> None:
        nonlocal said
        outlet.write(line)
        said += 1
        if said == 2:
            second.set()

    with Bars(say, writing)("fetching", 10) as advance:
        advance(5)
        assert second.wait(PATIENCE)
    lines = read(reading).splitlines()
    os.close(reading)
    os.close(writing)
    assert all(re.fullmatch(r"fetching: 50 %, 0.01 kB of 0.01 kB.*", line) for line in lines[:2])
    assert lines[-1].startswith("fetching: done")


def test_a_terminal_is_redrawn_and_left_clean_whatever_the_work_comes_to(
    terminal: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bars, "REDRAW", 0.01)
    seen, descriptor = terminal
    watch = Bars(lambda line: None, descriptor)
    with suppress(KeyError), watch("reading", unit=""):
        assert os.read(seen, 1000).decode() == f"{ERASE}reading  0:00 so far"
        raise KeyError
    assert read(seen).endswith(ERASE)


def test_work_aside_has_no_bar(terminal: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "REDRAW", 0.01)
    monkeypatch.setattr(bars, "LINES", 0.05)
    said = threading.Event()
    with Bars(lambda line: said.set(), terminal[1])("writing", 10, aside=True):
        assert said.wait(PATIENCE)
    assert read(terminal[0]) == ""


def test_a_stopped_terminal_holds_nothing_up(terminal: tuple[int, int]) -> None:
    display = TerminalDisplay(terminal[1], lambda line: None)
    for _ in range(2000):  # many times what a terminal takes that nobody reads
        display.show(half_done(), 105.0)
