import itertools
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import prime_p2p
from prime_p2p.monitor.events import (
    MAX_LINE,
    MAX_TEXT,
    Done,
    Event,
    EventReader,
    EventWriter,
    Log,
    OutputLost,
    Progress,
    Ready,
    State,
)
from prime_p2p.monitor.metrics import PhaseSeconds, RoundMetrics

PROGRESS = Progress(3, 10, 100, 2.5, 1234.5, 4, 5_000_000, State.TRAINING)
METRICS = RoundMetrics(4, "ab" * 32, ("a", "b"), (1, 2), 1, 2.5, 64, 100, 100, PhaseSeconds(inner=1.0, total=2.0))


class Pipe:
    """A pipe whose reading end a test holds; ``events`` are what came out of it."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        self.reader = EventReader()

    def raw(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in os.read(self.reading, 1 << 20).splitlines()]

    def events(self) -> list[Event]:
        return self.reader.feed(os.read(self.reading, 1 << 20))


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    os.close(made.reading)


def at_state(state: State) -> Progress:
    return Progress(3, 10, 100, 2.5, 1234.5, 4, 5_000_000, state)


def test_every_event_arrives_as_it_was_told(pipe: Pipe) -> None:
    writer = EventWriter(pipe.writing)
    writer.ready("12D3KooWabc", "/ip4/192.0.2.1/tcp/1/p2p/12D3KooWabc")
    writer.progress(PROGRESS)
    writer.outer_step(METRICS)
    writer.log("something\nhappened")
    writer.done(4, "ab" * 32)
    writer.close()
    assert pipe.events() == [
        Ready("12D3KooWabc", "/ip4/192.0.2.1/tcp/1/p2p/12D3KooWabc"),
        PROGRESS,
        METRICS,
        Log("something\nhappened"),
        Done(4, "ab" * 32),
    ]


def test_progress_has_the_agreed_names(pipe: Pipe) -> None:
    writer = EventWriter(pipe.writing)
    writer.progress(PROGRESS)
    writer.close()
    assert pipe.raw() == [
        {
            "event": "progress",
            "outer_step": 3,
            "inner_step": 10,
            "inner_steps": 100,
            "loss": 2.5,
            "tokens_per_second": 1234.5,
            "group_size": 4,
            "bytes_sent": 5_000_000,
            "state": "training",
        }
    ]


def test_progress_of_one_state_is_told_once_in_an_interval_and_a_change_at_once(pipe: Pipe) -> None:
    told = (
        (100.00, State.TRAINING),  # the first
        (100.10, State.TRAINING),  # too early
        (100.11, State.GATHERING),  # a change
        (100.12, State.TRAINING),  # and back
        (100.30, State.TRAINING),  # too early after that
        (100.38, State.TRAINING),
    )
    now = [0.0]
    writer = EventWriter(pipe.writing, interval=0.25, clock=lambda: now[0])
    for now[0], state in told:
        writer.progress(at_state(state))
    writer.close()
    states = [event.state for event in pipe.events() if isinstance(event, Progress)]
    assert states == [State.TRAINING, State.GATHERING, State.TRAINING, State.TRAINING]


def test_a_broken_pipe_is_raised_once_and_later_events_are_dropped() -> None:
    reading, writing = os.pipe()
    writer = EventWriter(writing)
    os.close(reading)
    with pytest.raises(OutputLost, match="Broken pipe"):
        writer.log("anybody there?")
    writer.log("nobody")
    writer.done(1, "")
    writer.close()


def fill(descriptor: int) -> None:
    while select.select([], [descriptor], [], 0)[1]:
        os.write(descriptor, bytes(4096))


def test_a_reader_that_stands_still_costs_progress_only_and_is_given_up_for_what_matters(pipe: Pipe) -> None:
    writer = EventWriter(pipe.writing, interval=0.0, patience=0.05)
    writer.progress(PROGRESS)
    fill(pipe.writing)
    writer.progress(PROGRESS)
    with pytest.raises(OutputLost, match="stayed full"):
        writer.outer_step(METRICS)
    writer.outer_step(METRICS)


def test_a_long_text_is_cut(pipe: Pipe) -> None:
    writer = EventWriter(pipe.writing)
    writer.log("x" * 10 * MAX_TEXT)
    writer.close()
    assert pipe.events() == [Log("x" * MAX_TEXT)]


def test_other_output_of_the_process_goes_to_standard_error() -> None:
    code = (
        "import os\n"
        "from prime_p2p.monitor.events import EventWriter\n"
        "writer = EventWriter.on_stdout()\n"
        "print('stray', flush=True)\n"
        "os.system('echo child')\n"
        "writer.log('event')\n"
    )
    root = str(Path(prime_p2p.__file__).parents[1])
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert json.loads(result.stdout) == {"event": "log", "text": "event"}
    assert result.stderr == b"stray\nchild\n"


LINES = b"".join(
    json.dumps(record).encode() + b"\n"
    for record in (
        {"event": "log", "text": "ä" * 50},
        {"event": "done", "outer_step": 1, "digest": "00"},
        {"event": "log", "text": "last"},
    )
)


@settings(deadline=None)
@given(st.lists(st.integers(0, len(LINES)), max_size=8))
def test_events_are_the_same_however_the_bytes_are_cut(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(LINES)]
    reader = EventReader()
    events = [event for start, stop in itertools.pairwise(places) for event in reader.feed(LINES[start:stop])]
    assert events == [Log("ä" * 50), Done(1, "00"), Log("last")]


@pytest.mark.parametrize(
    "line",
    [
        b"a library says hello",
        b"[1, 2]",
        b"null",
        b'{"event": 3}',
        b'{"event": "unknown"}',
        b'{"event": "progress", "state": "training"}',
        b'{"event": "done", "outer_step": 1, "digest": "", "more": 1}',
        b'{"event": "outer_step", "outer_step": 1}',
        b"\xff\xfe",
        b"",
        b"[" * 60_000,
        b"x" * 100_000,
    ],
)
def test_a_line_that_is_no_event_is_skipped(line: bytes) -> None:
    assert EventReader().feed(line + b'\n{"event": "log", "text": "after"}\n') == [Log("after")]


def test_an_endless_line_is_forgotten_and_takes_no_memory() -> None:
    reader = EventReader()
    for _ in range(50):
        assert reader.feed(b"x" * MAX_LINE) == []
    assert len(reader._rest) <= 2 * MAX_LINE
    assert reader.feed(b'\n{"event": "log", "text": "after"}\n') == [Log("after")]
