"""What `prime-p2p show` says of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from public_runs import author, signed

from prime_p2p.public.admission import Admission
from prime_p2p.public.look import Look
from prime_p2p.public.show import as_json, lines

CHANGES = [
    {"at": 5, "values": {"outer.momentum": 0.25}},
    {"at": 40, "values": {"inner.learning_rate": 0.5}, "phase": "pause"},
]


def look(folder: Path, step: int = 7, **changes: Any) -> Look:
    return Look(signed(author(folder), changes=CHANGES, **changes), [{"outer_step": step, "pace": 90.0}] * 2)


def test_it_says_what_holds_and_what_is_announced(tmp_path: Path) -> None:
    said = lines(look(tmp_path, minimum_version="0.2.0", admission=Admission(banned=["12D3KooWa"])))
    words = dict(said)
    assert words["run"] == "tiny, which trains"
    assert words["progress"] == "outer step 7 of 30, 1:30 each"
    assert words["peers"] == "2 there"
    assert words["admission"] == "open, 1 banned"
    assert words["version"] == "prime_p2p 0.2.0 or newer"
    values = [text for word, text in said if word == "value"]
    assert "outer.momentum = 0.25" in values
    assert "inner.learning_rate = 0.0015" in values
    assert [text for word, text in said if word == "change"] == [
        "from outer step 40 on, 33 from here: inner.learning_rate = 0.5, the run is paused"
    ]


def test_a_change_that_has_come_is_one_no_more(tmp_path: Path) -> None:
    words = dict(lines(look(tmp_path, step=40)))
    assert words["run"] == "tiny, which is paused"
    assert "change" not in words


def test_json_has_all_of_it(tmp_path: Path) -> None:
    said = json.loads(json.dumps(as_json(look(tmp_path))))
    assert (said["run"], said["sequence"], said["phase"], said["outer_step"]) == ("tiny", 1, "train", 7)
    assert said["recipe"]["outer"]["momentum"] == 0.25
    assert [change["at"] for change in said["changes"]] == [40]


def test_what_an_author_wrote_cannot_move_the_cursor(tmp_path: Path) -> None:
    assert all(text.isprintable() for _, text in lines(look(tmp_path, minimum_version="1\x1b[2J")))
