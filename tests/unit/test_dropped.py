"""What was dropped is counted, and said in few lines."""

from __future__ import annotations

import logging

import pytest

from prime_p2p.network.dropped import FIRSTS, QUIET, Dropped


class Clock:
    time = 0.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def now() -> Clock:
    return Clock()


@pytest.fixture
def dropped(now: Clock, caplog: pytest.LogCaptureFixture) -> Dropped:
    caplog.set_level(logging.WARNING)
    return Dropped(now)


def test_every_one_is_counted_by_its_kind(dropped: Dropped) -> None:
    for _ in range(5):
        dropped.note("frame", "bad", "peer")
    dropped.note("record", "bad")
    assert dropped.counts() == {"frame": 5, "record": 1}


def test_the_first_of_a_peer_is_said_and_the_others_in_one_line_a_minute(
    dropped: Dropped, now: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        dropped.note("frame", "bad", "peer")
    assert caplog.messages == ["dropped a frame from peer: bad"]
    now.time = QUIET
    for _ in range(100):
        dropped.note("frame", "worse", "peer")
    assert caplog.messages[1:] == ["dropped a frame from peer: worse (99 more since the last line)"]


def test_the_first_ones_of_many_peers_are_few_lines_too(
    dropped: Dropped, now: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(5000):
        dropped.note("frame", "bad", f"peer-{number}")
    assert len(caplog.messages) == FIRSTS
    now.time = QUIET
    dropped.note("frame", "bad", "peer-1")
    assert caplog.messages[-1] == f"dropped a frame from peer-1: bad ({5000 - FIRSTS} more since the last line)"
    assert len(dropped._heard_of) <= 1024


def test_kinds_do_not_silence_each_other(dropped: Dropped, caplog: pytest.LogCaptureFixture) -> None:
    for kind in ("frame", "record", "frame", "record"):
        dropped.note(kind, "bad", "peer")
    assert caplog.messages == ["dropped a frame from peer: bad", "dropped a record from peer: bad"]


def test_what_strangers_wrote_is_one_short_line(dropped: Dropped, caplog: pytest.LogCaptureFixture) -> None:
    dropped.note("frame", "\x1b[2J\n" * 1000, "\r\u202e" * 1000)
    (line,) = caplog.messages
    assert line.isascii()
    assert line.isprintable()
    assert len(line) < 2000
