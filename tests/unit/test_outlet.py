"""Lines that somebody reads late, or not at all."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from prime_p2p.monitor.outlet import Outlet

LINE = "x" * 999


@pytest.fixture
def pipe() -> Iterator[list[int]]:
    """The two ends of a pipe; a test that closes one takes it out."""
    ends = list(os.pipe())
    yield ends
    for end in ends:
        os.close(end)


def test_lines_arrive_whole_and_in_order(pipe: list[int]) -> None:
    outlet = Outlet(pipe[1])
    for text in ("one", "zwei ü", "\udcff"):
        outlet.write(text)
    assert os.read(pipe[0], 100).decode() == "one\nzwei ü\n\\udcff\n"


def test_a_reader_that_has_left_is_no_error(pipe: list[int]) -> None:
    outlet = Outlet(pipe[1])
    os.close(pipe.pop(0))
    for _ in range(3):
        outlet.write("line")


def test_a_closed_descriptor_is_no_error(pipe: list[int]) -> None:
    outlet = Outlet(pipe[1])
    os.close(pipe.pop())
    outlet.write("line")


def test_a_full_pipe_costs_the_patience_once_and_lines_come_again_when_there_is_room(pipe: list[int]) -> None:
    outlet = Outlet(pipe[1], patience=0.2)
    began = time.monotonic()
    for _ in range(1000):  # a pipe takes some sixty of them
        outlet.write(LINE)
    assert 0.2 <= time.monotonic() - began < 20
    taken = os.read(pipe[0], 1 << 20).decode()
    assert set(taken.removesuffix("\n").split("\n")) == {LINE}
    outlet.write("after")
    assert os.read(pipe[0], 100) == b"after\n"


def test_a_line_of_which_a_part_was_dropped_does_not_run_into_the_next_one(pipe: list[int]) -> None:
    outlet = Outlet(pipe[1], patience=0.0)
    outlet.write("y" * (1 << 20))
    assert set(os.read(pipe[0], 1 << 20)) == {ord("y")}
    outlet.write("whole")
    assert os.read(pipe[0], 100) == b"\nwhole\n"


def test_a_line_waits_for_a_slow_reader(pipe: list[int]) -> None:
    content = "z" * (1 << 20)
    received = bytearray()

    def read() -> None:
        while len(received) <= len(content):
            received.extend(os.read(pipe[0], 1 << 16))

    reader = threading.Thread(target=read)
    reader.start()
    Outlet(pipe[1], patience=60.0).write(content)
    reader.join(60)
    assert received.decode() == content + "\n"
