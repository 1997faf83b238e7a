"""What a peer tells watchers: how much of it at a time, and what is refused of what strangers say."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from typing import Any

import pytest
from watched_runs import START, digest, made, peer_id, run_of

from prime_p2p.bulletin import bulletin as bulletins
from prime_p2p.bulletin.bulletin import Bulletin
from prime_p2p.bulletin.messages import MOST_LINES, MOST_PACKED, MOST_UNPACKED, Missed, Now, line, packed, read
from prime_p2p.monitor.events import Progress, State
from prime_p2p.monitor.metrics import RoundMetrics
from prime_p2p.network.frames import FrameError
from prime_p2p.watching.dashboard.history import History
from prime_p2p.watching.dashboard.overview import overview
from prime_p2p.watching.picture import picture

PROGRESS = Progress(7, 3, 10, 2.5, 100.0, 4, 1000, State.TRAINING)
STEP = made(5, ("first-peer", "second-peer"))


def steps(answer: bytes) -> list[int]:
    return [news.outer_step for news in read(answer) if isinstance(news, RoundMetrics)]


def test_a_watcher_is_told_each_outer_step_once_and_always_where_the_peer_is() -> None:
    bulletin = Bulletin()
    bulletin.progress(PROGRESS)
    bulletin.outer_step(made(1, ()))
    bulletin.outer_step(made(2, ()))
    last, answer = bulletin.after(b"", 0)
    assert (last, steps(answer)) == (2, [1, 2])
    bulletin.missed()
    bulletin.outer_step(made(3, ()))
    last, answer = bulletin.after(bulletin.session, last)
    assert (last, steps(answer)) == (4, [3])
    assert [type(news) for news in read(answer)] == [Missed, RoundMetrics, Now]
    assert read(bulletin.after(bulletin.session, last)[1]) == [Now(**fields_of_now())]


def fields_of_now(**changes: object) -> dict[str, Any]:
    fields = {"outer_step": 7, "inner_step": 3, "inner_steps": 10, "loss": 2.5, "tokens_per_second": 100.0}
    return fields | {"group_size": 4, "state": "training"} | changes


def test_whoever_asks_with_the_session_of_another_process_or_a_number_to_come_is_told_what_there_is() -> None:
    bulletin = Bulletin()
    bulletin.outer_step(made(1, ()))
    assert steps(bulletin.after(b"another", 1)[1]) == [1]
    assert steps(bulletin.after(bulletin.session, 2**62)[1]) == []
    assert bulletin.after(bulletin.session, 2**62)[0] == 1


def test_a_long_history_is_told_in_several_answers_that_each_can_be_read() -> None:
    bulletin = Bulletin()
    group = tuple(f"peer-{number:058}" for number in range(200))
    for step in range(300):
        bulletin.outer_step(made(step, group))
    told: list[int] = []
    last, answers = 0, 0
    while (answer := bulletin.after(bulletin.session, last))[0] != last:
        last, payload = answer
        assert len(payload) <= MOST_PACKED
        told += steps(payload)
        answers += 1
    assert told == list(range(told[0], 300))
    assert answers > 1
    assert len(told) * len(line("outer_step", made(1, group).to_json())) <= bulletins.MOST_KEPT_BYTES


def test_the_bulletin_keeps_so_many_lines_and_no_more() -> None:
    bulletin = Bulletin()
    for step in range(2 * bulletins.MOST_KEPT):
        bulletin.outer_step(made(step, ()))
    last, payload = bulletin.after(bulletin.session, 0)
    assert steps(payload)[0] == bulletins.MOST_KEPT
    assert last == bulletins.MOST_KEPT + MOST_LINES - 1


@pytest.mark.parametrize("loss", [1e31, -1e31, float("inf"), float("nan")])
def test_a_loss_that_grows_without_bounds_is_none_and_the_rest_is_told(loss: float) -> None:
    bulletin = Bulletin()
    bulletin.progress(replace(PROGRESS, loss=loss))
    bulletin.outer_step(made(1, (), train_loss=loss, val_loss=loss))
    step, now = read(bulletin.after(b"", 0)[1])
    assert isinstance(step, RoundMetrics)
    assert (step.outer_step, step.train_loss, step.val_loss) == (1, None, None)
    assert now == Now(**fields_of_now(loss=None))


def test_a_phase_changes_what_the_peer_does_and_nothing_else() -> None:
    bulletin = Bulletin()
    bulletin.progress(PROGRESS)
    bulletin.phase(State.GATHERING, 0)
    assert read(bulletin.after(b"", 0)[1]) == [Now(**fields_of_now(state="gathering"))]


def test_figures_without_a_number_are_told_as_none_at_all() -> None:
    bulletin = Bulletin()
    bulletin.progress(Progress(1, 1, 10, float("nan"), float("inf"), 1, 0, State.TRAINING))
    (said,) = read(bulletin.after(b"", 0)[1])
    assert isinstance(said, Now)
    assert (said.loss, said.tokens_per_second) == (None, 0.0)


def changed(**changes: object) -> bytes:
    return line("outer_step", STEP.to_json() | changes)


def now_with(text: str) -> bytes:
    """A line of the present with a text in place of its loss, which JSON may not have a number for."""
    return line("now", fields_of_now(loss="@")).replace(b'"@"', text.encode())


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b'{"event": "now"}',
        b'{"event": []}',
        b'{"event": "gossip"}',
        b'"now"',
        b"\xff\xfe",
        b"[" * 100_000,
        now_with("NaN"),
        now_with("Infinity"),
        now_with("1e31"),
        now_with("9" * 5000),
        now_with('"low"'),
        line("now", fields_of_now(state="\x1b[2J")),
        line("now", fields_of_now(inner_step=-1)),
        line("now", fields_of_now(outer_step=2**63)),
        line("now", fields_of_now(outer_step=True) | {"inner_steps": None}),
        line("missed", {}),
        changed(digest="zz" * 32),
        changed(digest="ab" * 31),
        changed(group=["\x1b[2Jpeer-id"]),
        changed(group=["peer-number"] * 300),
        changed(group="peer-number"),
        changed(weights=[-1]),
        changed(attempts=10**7),
        changed(seconds={"inner": -1.0}),
        changed(seconds=[]),
        changed(dropped={"\x1b[2J": 1}),
        changed(dropped={f"kind {chr(97 + n // 26)}{chr(97 + n % 26)}": 1 for n in range(40)}),
        changed(given_bytes="many"),
    ],
)
def test_a_line_that_is_not_of_the_form_is_refused_in_one_line(bad: bytes) -> None:
    with pytest.raises(FrameError) as refused:
        read(packed([bad, line("missed", {"outer_step": 1})]))
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 100


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"no zlib",
        packed([changed()])[:-5],
        packed([changed()])[:10],
        zlib.compress(b" " * (MOST_UNPACKED + 1)),
        zlib.compress(bytes(100 * 2**20)),
        packed([line("missed", {"outer_step": 1})] * (MOST_LINES + 1)),
    ],
    ids=["empty", "garbage", "cut", "stub", "long", "bomb", "many"],
)
def test_an_answer_that_is_cut_or_becomes_too_large_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError):
        read(payload)


def test_what_is_told_reads_back_the_same_and_what_is_unknown_of_it_is_left_out() -> None:
    told = json.loads(changed(news_of_a_later_release=1))
    assert read(packed([json.dumps(told).encode()])) == [STEP]
    assert STEP.digest == digest(5).hex()


def test_an_outer_step_that_took_no_time_to_speak_of_leaves_all_figures_of_a_run_finite() -> None:
    view = run_of(2)
    instant = made(41, (), bytes_sent=2**62).to_json() | {"seconds": {"inner": 1e9, "total": 5e-324}}
    short = made(41, (), bytes_sent=2**62).to_json() | {"seconds": {"inner": 1e9, "total": 1e-6}}
    for number, step in enumerate((instant, short)):
        view.heard(peer_id(number), read(packed([line("outer_step", step)])), START)
    assert json.dumps(picture(view, START), allow_nan=False)
    assert "peer-1" in overview(view, History(), None, "", START)["peers"]
    assert view.compute_share == 1.0
