from __future__ import annotations

import json
import os

import pytest

from prime_p2p.monitor.events import EventWriter, OutputLost, Progress, State
from prime_p2p.monitor.metrics import PhaseSeconds, RoundMetrics
from prime_p2p.monitor.reporter import EventReporter, PlainReporter, open_reporter

PROGRESS = Progress(3, 7, 20, 2.5, 1000.0, 4, 123, State.TRAINING)
METRICS = RoundMetrics(
    outer_step=4,
    digest="ab" * 32,
    group=("one", "two"),
    weights=(10, 20),
    attempts=1,
    train_loss=2.25,
    tokens=10,
    bytes_sent=2_000_000,
    bytes_received=1,
    seconds=PhaseSeconds(inner=9.0, total=10.0),
    val_loss=2.125,
)


def test_a_phase_of_the_round_is_told_with_what_was_last_known() -> None:
    reading, writing = os.pipe()
    reporter = EventReporter(EventWriter(writing, interval=0.0))
    reporter.progress(PROGRESS)
    reporter.phase(State.GATHERING, 0)
    reporter.phase(State.REDUCING, 3)
    with os.fdopen(reading) as lines:
        told = [json.loads(lines.readline()) for _ in range(3)]
    os.close(writing)
    assert [event["state"] for event in told] == ["training", "gathering", "reducing"]
    assert [event["group_size"] for event in told] == [4, 4, 3]
    assert all(event["inner_step"] == 7 and event["loss"] == 2.5 for event in told)


def test_the_training_thread_learns_that_nobody_listens_any_more() -> None:
    reading, writing = os.pipe()
    reporter = EventReporter(EventWriter(writing, interval=0.0))
    os.close(reading)
    reporter.phase(State.GATHERING, 0)  # in the network thread: it must not raise there
    with pytest.raises(OutputLost):
        reporter.progress(PROGRESS)
    reporter.progress(PROGRESS)  # told once


def test_a_program_is_told_of_long_work_and_the_training_thread_that_it_does_not_listen() -> None:
    reading, writing = os.pipe()
    reporter = EventReporter(EventWriter(writing, interval=0.0))
    reporter.long_work("fetching: 50 %")
    assert json.loads(os.read(reading, 1000)) == {"event": "log", "text": "fetching: 50 %"}
    os.close(reading)
    reporter.long_work("fetching: 60 %")  # in a thread of its own: it must not raise there
    with pytest.raises(OutputLost):
        reporter.progress(PROGRESS)


def test_a_person_reads_a_line_an_outer_step(capfd: pytest.CaptureFixture[str]) -> None:
    with open_reporter(json=False) as reporter:
        reporter.outer_step(METRICS)
        reporter.done(4, bytes.fromhex("ab" * 32))
    lines = capfd.readouterr().out.splitlines()
    assert lines == [
        "outer step 4 done: loss 2.2500, validation loss 2.1250, group of 2, 10.0 s, 90% of it computing, "
        "2.0 MB sent, digest abababababab",
        "the run has ended at outer step 4, digest abababababab",
    ]


def test_progress_is_no_more_than_a_line_in_ten_seconds_for_a_person(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("prime_p2p.monitor.reporter.time.monotonic", lambda: now)
    reporter = PlainReporter()
    for _ in range(25):
        reporter.progress(PROGRESS)
        now += 1.0
    assert len(capfd.readouterr().out.splitlines()) == 3
