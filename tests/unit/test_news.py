"""What a peer tells of rounds that it missed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prime_p2p.diloco import OuterStep
from prime_p2p.monitor.metrics import MetricsLog
from prime_p2p.monitor.reporter import PlainReporter
from prime_p2p.network import dropped
from prime_p2p.news import News
from prime_p2p.state import given
from prime_p2p.swarm.groups import Group, Member
from prime_p2p.swarm.runner import RoundResult


def missed(reason: str) -> OuterStep:
    return OuterStep(7, b"d" * 32, 0, RoundResult(reason=reason), {})


def committed() -> OuterStep:
    seconds = {"inner": 1.0, "gather": 0.0, "reduce": 0.0, "commit": 0.0, "apply": 0.0, "total": 1.0}
    group = Group("run", 7, b"d" * 32, (Member("me", 1, 10, 1.0),))
    return OuterStep(8, b"e" * 32, 10, RoundResult(group=group, attempts=1), seconds)


def test_rounds_missed_for_one_reason_are_one_line_until_that_changes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with MetricsLog(tmp_path / "metrics.jsonl") as metrics:
        news = News(PlainReporter(), metrics)
        for step in range(100):
            news.missed(missed(f"others are at outer step {step} already"))
        for _ in range(100):
            news.missed(missed("a round began without this peer"))
        news.outer_step(committed(), 1.0, None)
        news.missed(missed("a round began without this peer"))
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith("no outer step")]
    assert lines == [
        "no outer step: others are at outer step 0 already; training on",
        "no outer step: a round began without this peer; training on",
        "no outer step: a round began without this peer; training on",
    ]


def test_what_was_dropped_is_in_the_line_of_the_next_outer_step_where_anything_was(tmp_path: Path) -> None:
    dropped.note("frame", "before there was any news")
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as metrics:
        news = News(PlainReporter(), metrics)
        news.outer_step(committed(), 1.0, None)
        for _ in range(3):
            dropped.note("frame", "bad", "peer")
        dropped.note("record", "bad")
        news.outer_step(committed(), 1.0, None)
        news.outer_step(committed(), 1.0, None)
    first, second, third = (json.loads(line) for line in path.read_text().splitlines())
    assert second["dropped"] == {"frame": 3, "record": 1}
    assert "dropped" not in first.keys() | third.keys()


def test_the_state_that_was_given_to_others_is_in_the_line_of_the_next_outer_step_where_any_was(tmp_path: Path) -> None:
    given.note(1, snapshots=1)
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as metrics:
        news = News(PlainReporter(), metrics)
        given.note(20)
        given.note(300, snapshots=1)
        news.outer_step(committed(), 1.0, None)
        news.outer_step(committed(), 1.0, None)
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert (first["given_snapshots"], first["given_bytes"]) == (1, 320)
    assert not {"given_snapshots", "given_bytes"} & second.keys()
