"""A run in plain lines and as JSON, from a watcher that sees what it is told to."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest
from watched_runs import START, beat, peer_id, run_of

from prime_p2p.network import clock
from prime_p2p.swarm.membership import BEAT_LIVES, LEFT, Heartbeat
from prime_p2p.watching import plain
from prime_p2p.watching.view import RunView
from prime_p2p.watching.watcher import Watcher


class Told:
    """In place of a watcher: whenever somebody waits for a change, the next of some happens."""

    def __init__(self, view: RunView, *happens: Any) -> None:
        self.view = view
        self._happens = list(happens)

    async def change(self, since: int, timeout: float) -> int:
        if self._happens:
            self._happens.pop(0)()
        return self.view.version


def said(way: Any, view: RunView, *happens: Any) -> list[str]:
    """What is written of a view until it ends."""
    lines: list[str] = []
    asyncio.run(asyncio.wait_for(way(cast("Watcher", Told(view, *happens)), lines.append), 20))
    return lines


def everybody_leaves(view: RunView, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the run end: all leave in good order, and some time goes by."""

    def leave() -> None:
        view.looked({peer: Heartbeat(state=LEFT, sent_at=START + 1) for peer in view.peers}, START + 1)
        monkeypatch.setattr(clock, "now", lambda: START + 2 + BEAT_LIVES)

    return leave


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "PICTURE_EVERY", 0.0)
    monkeypatch.setattr(clock, "now", lambda: START)


def test_once_is_the_table_the_run_and_the_last_events() -> None:
    lines = said(plain.once, run_of(12))
    rows = lines[0].split("\n")
    assert rows[0].split()[:3] == ["peer", "step", "inner"]
    assert [row.split()[0] for row in rows[1:]] == [f"peer-{number}" for number in range(12)]
    assert max(map(len, rows)) <= plain.ONCE_WIDTH
    assert lines[1].startswith("run demo, outer step 40, 12 peers, 12.1k tokens/s, 1.60M tokens, 91 % in inner steps")
    assert len(lines) == 2 + plain.ONCE_EVENTS
    assert lines[-1].endswith("  peer-11 is there")


def test_once_waits_for_the_news_of_those_who_are_there_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "ONCE_PATIENCE", 0.05)
    view = RunView("demo")
    view.looked({peer_id(0): beat(0, 3, START, name="[red]x[/]")}, START)
    assert "[red]x[/]" in said(plain.once, view)[0]


def test_lines_are_events_as_they_come_until_the_run_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    view = run_of(2)
    lines = said(plain.lines, view, lambda: view.silent(peer_id(1), START), everybody_leaves(view, monkeypatch))
    told = [line.partition("  ")[2] for line in lines]
    assert told[:2] == ["peer-0 is there", "peer-1 is there"]
    assert told[3] == "peer-1 is gone without a word, at outer step 40"
    assert told[-2] == "peer-1 left at outer step 40"
    assert lines[2].startswith("run demo, outer step 40, 2 peers")
    assert lines[-1].startswith("run demo, outer step 40, 0 peers")


def test_json_begins_with_a_picture_and_goes_on_with_events_and_what_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    view = run_of(2)
    changes = [lambda: view.silent(peer_id(1), START), lambda: None, everybody_leaves(view, monkeypatch)]
    lines = [json.loads(line) for line in said(plain.json_lines, view, *changes)]
    assert [key for line in lines for key in line] == ["picture", "event", "now", "event", "event", "now"]
    assert [event["kind"] for event in lines[0]["picture"]["events"]] == ["joined", "joined"]
    assert lines[1]["event"]["kind"] == "lost"
    assert [peer["state"] for peer in lines[2]["now"]["peers"]] == ["training", "lost"]
    assert [peer["state"] for peer in lines[-1]["now"]["peers"]] == ["left", "left"]
