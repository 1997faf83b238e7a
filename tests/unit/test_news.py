"""What a peer tells of rounds that it missed."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_p2p.diloco import OuterStep
from prime_p2p.monitor.metrics import MetricsLog
from prime_p2p.monitor.reporter import PlainReporter
from prime_p2p.news import News
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
