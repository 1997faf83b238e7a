"""What a watcher makes of heartbeats and news."""

from __future__ import annotations

import pytest
from watched_runs import START, beat, digest, made, now, peer_id, run_of

from prime_p2p.bulletin.messages import Missed
from prime_p2p.swarm.membership import BEAT_LIVES, LEFT, Heartbeat
from prime_p2p.watching import view as views
from prime_p2p.watching.view import LOST, MOST_STEPS, RunView, newer

ONE, TWO, THREE = (peer_id(number) for number in range(3))


def kinds(view: RunView, after: int = 0) -> list[str]:
    return [event.kind for event in newer(view.events, after)]


def of_three(step: int = 5) -> RunView:
    view = RunView("demo/author")
    view.looked({peer_id(number): beat(number, step, START) for number in range(3)}, START)
    return view


def test_a_run_is_its_peers_and_where_the_furthest_of_them_say_that_it_is_unless_only_one_does() -> None:
    view = of_three(5)
    view.looked({ONE: beat(0, 6, START + 1), TWO: beat(1, 5, START + 1)}, START + 1)
    assert (view.name, view.outer_step, view.tokens) == ("demo", 5, 5 * 40_000)
    assert [peer.peer_id for peer in view.present] == [ONE, TWO, THREE]
    assert kinds(view) == ["joined"] * 3
    view.heard(ONE, [made(step, (ONE,), val_loss=0.1) for step in (6, 7, 2**62)], START + 2)
    view.heard(TWO, [made(6, (TWO,))], START + 2)
    assert view.outer_step == 6
    assert [one["outer_step"] for one in view.rounds()] == [6, 7]
    assert [step for step, _ in view.validation()] == [6, 7]


def test_a_peer_that_leaves_says_so_and_one_without_a_heartbeat_is_lost_and_both_may_come_back() -> None:
    view = of_three()
    view.looked({ONE: Heartbeat(state=LEFT, sent_at=START + 1), TWO: beat(1, 5, START + 10)}, START + 10)
    view.looked({TWO: beat(1, 5, START + 10)}, START + BEAT_LIVES + 1)
    assert [view.peers[one].state for one in (ONE, TWO, THREE)] == [LEFT, "training", LOST]
    assert kinds(view, 3) == ["left", "lost"]
    view.looked({ONE: beat(0, 5, START + 20), THREE: beat(2, 5, START + 20)}, START + 20)
    assert len(view.present) == 3
    assert kinds(view, 5) == ["joined", "joined"]


def test_a_peer_whose_stream_is_cut_is_lost_at_once_and_is_back_when_it_tells_news() -> None:
    view = of_three()
    view.silent(ONE, START + 1)
    assert view.peers[ONE].state == LOST
    view.heard(ONE, [now(0, 5)], START + 2)
    assert (view.peers[ONE].state, kinds(view, 3)) == ("training", ["lost", "joined"])


def test_the_last_heartbeat_of_a_lost_peer_which_is_found_later_does_not_bring_it_back() -> None:
    view = of_three()
    view.silent(ONE, START + 3)
    view.looked({ONE: beat(0, 5, START + 2)}, START + 4)
    assert view.peers[ONE].state == LOST
    view.looked({ONE: beat(0, 5, START + 5)}, START + 6)
    assert (view.peers[ONE].state, kinds(view, 3)) == ("training", ["lost", "joined"])


def test_only_outer_steps_that_were_made_since_a_peer_was_first_seen_are_events() -> None:
    view = of_three(5)
    told = [made(step, (ONE,), attempts=2, snapshots=1, state_bytes=10**6) for step in (4, 5)]
    view.heard(ONE, [*told, Missed(outer_step=4), now(0, 5)], START)
    assert kinds(view, 3) == []
    assert sorted(view.peers[ONE].steps) == [4, 5]
    last = made(6, (ONE,), attempts=3, given_snapshots=1, given_bytes=75_300_000, dropped={"frame": 2})
    view.heard(ONE, [last, Missed(outer_step=6)], START + 1)
    assert kinds(view, 3) == ["retried", "gave", "dropped", "missed"]
    assert newer(view.events, 3)[1].text == "peer-0 gave others 75.3 MB of a snapshot before outer step 6"


def test_a_peer_with_another_digest_than_most_is_odd_from_the_second_look_on_until_it_is_healed() -> None:
    view = of_three()
    for look in (1.0, 2.0):
        beats = {peer_id(number): beat(number, 6, START + look) for number in range(3)}
        view.looked(beats | {TWO: beat(1, 6, START + look, digest=b"x" * 32)}, START + look)
        assert view.peers[TWO].odd is (look == 2.0)
    view.looked({peer_id(number): beat(number, 7, START + 3) for number in range(3)}, START + 3)
    assert not view.peers[TWO].odd
    assert kinds(view, 3) == ["fork", "healed"]


def test_a_peer_that_is_gone_is_not_odd() -> None:
    view = of_three()
    for look in (1.0, 2.0):
        view.looked({TWO: beat(1, 5, START + look, digest=b"x" * 32)}, START + look)
    assert view.peers[TWO].odd
    view.silent(TWO, START + 3)
    view.looked({}, START + 3)
    assert not view.peers[TWO].odd


def test_rounds_and_validation_losses_follow_what_is_told_later() -> None:
    view = of_three()
    view.heard(ONE, [made(6, (ONE, TWO), train_loss=2.0)], START)
    assert [(one["outer_step"], one["train_loss"], one["recorded_by"]) for one in view.rounds()] == [(6, 2.0, 1)]
    view.heard(TWO, [made(6, (ONE, TWO), train_loss=3.0, val_loss=2.75), made(7, (TWO,), train_loss=1.0)], START)
    assert [(one["outer_step"], one["train_loss"], one["recorded_by"]) for one in view.rounds()] == [
        (6, 2.5, 2),
        (7, 1.0, 1),
    ]
    assert view.validation() == [(6, 2.75)]


def test_a_peer_that_tells_of_large_groups_drives_out_its_own_outer_steps_not_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("prime_p2p.watching.view.MOST_MEMBERS", 20)
    view = of_three()
    view.heard(ONE, [made(step, (ONE, TWO)) for step in range(1, 4)], START)
    for step in range(10):
        view.heard(TWO, [made(step, tuple(f"nobody-{step}-{number}" for number in range(7)))], START)
    assert sorted(view.peers[ONE].steps) == [1, 2, 3]
    assert sorted(view.peers[TWO].steps) == [8, 9]
    for _ in range(10):
        view.heard(TWO, [made(9, ("nobody",))], START)
    assert sorted(view.peers[TWO].steps) == [8, 9]
    assert sum(peer.members for peer in view.peers.values()) == view._members == 14


def test_what_is_kept_of_a_peer_and_of_those_that_are_gone_is_bounded() -> None:
    view = of_three()
    for peer in (ONE, TWO):
        view.heard(peer, [made(step, (peer,)) for step in range(MOST_STEPS + 10)], START)
    assert sorted(view.peers[ONE].steps) == list(range(10, MOST_STEPS + 10))
    assert view.rounds()[0]["outer_step"] == 10
    many = {peer_id(number): beat(number, 1, START) for number in range(views.MOST_GONE + 50)}
    view.looked(many, START)
    view.looked({}, START + 2 * BEAT_LIVES)
    view.looked({}, START + 2 * BEAT_LIVES)
    assert len(view.peers) == views.MOST_GONE
    assert len(view.events) == views.MOST_EVENTS


def test_old_heartbeats_and_news_of_unknown_peers_change_nothing() -> None:
    view = of_three()
    view.looked({peer_id(9): beat(9, 5, START - BEAT_LIVES - 1)}, START)
    view.looked({ONE: beat(0, 2, START - 1)}, START)
    view.heard(peer_id(9), [now(9, 5)], START)
    assert (len(view.peers), view.outer_step) == (3, 5)


def test_a_run_has_ended_some_time_after_its_last_peer_has_left_and_not_where_that_was_lost() -> None:
    view = of_three()
    left = Heartbeat(state=LEFT, sent_at=START + 2)
    view.silent(ONE, START + 1)
    view.looked({TWO: left, THREE: left}, START + 2)
    assert not view.ended(START + 3)
    assert view.ended(START + 3 + BEAT_LIVES)
    lost = of_three()
    lost.looked({}, START + 2 * BEAT_LIVES)
    assert not lost.ended(START + 4 * BEAT_LIVES)
    assert not RunView("nobody").ended(START)


def test_the_share_of_computing_and_the_rates_are_those_of_the_peers_there() -> None:
    view = run_of(4, steps=2)
    assert view.compute_share == 18.2 / 20
    assert view.tokens_per_second == 4006.0
    assert view.peers[ONE].rates == (205_000.0, 210_000.0)
    view.silent(ONE, START)
    assert view.tokens_per_second == 3006.0
    assert view.peers[ONE].rates == (0.0, 0.0)
    assert digest(2) == view.peers[ONE].beat.digest


def test_a_peer_that_tells_of_events_without_end_does_not_drive_out_those_of_others() -> None:
    view = of_three(5)
    for second in range(1, 21):
        view.heard(ONE, [Missed(outer_step=5)] * 50, START + second)
    of_one = [event for event in view.events if event.peer == ONE]
    assert views.EVENTS_AT_ONCE <= len(of_one) < views.EVENTS_AT_ONCE + 5
    assert {TWO, THREE} <= {event.peer for event in view.events}
    view.heard(ONE, [Missed(outer_step=6)], START + 20 + views.EVENT_EVERY)
    assert view.events[-1].text.endswith("outer step 6")


def test_a_run_goes_on_where_those_who_are_there_are_and_stays_where_it_was_when_nobody_is() -> None:
    view = of_three(5)
    view.looked(
        {ONE: Heartbeat(state=LEFT, sent_at=START + 1), TWO: Heartbeat(state=LEFT, sent_at=START + 1)}, START + 1
    )
    view.heard(THREE, [made(step, (THREE,)) for step in (6, 7, 8)], START + 2)
    assert (view.outer_step, view.rounds()[-1]["outer_step"]) == (8, 8)
    view.looked({THREE: Heartbeat(state=LEFT, sent_at=START + 3)}, START + 3)
    assert (view.present, view.outer_step) == ([], 8)


def test_of_two_that_disagree_neither_is_like_most_and_they_have_not_agreed_where_they_cannot_be_compared() -> None:
    view = RunView("demo")
    for look in (1, 2):
        at = START + look
        view.looked({ONE: beat(0, 7, at, digest=digest(1)), TWO: beat(1, 7, at, digest=digest(2))}, at)
    assert [event.text for event in newer(view.events, 2)] == [
        "peer-0 holds another state than others at outer step 7",
        "peer-1 holds another state than others at outer step 7",
    ]
    view.looked({ONE: beat(0, 8, START + 3, digest=digest(1)), TWO: beat(1, 9, START + 3, digest=digest(2))}, START + 3)
    assert kinds(view, 4) == []
    assert view.peers[ONE].odd
    view.looked({ONE: beat(0, 9, START + 4, digest=digest(2)), TWO: beat(1, 9, START + 4, digest=digest(2))}, START + 4)
    assert kinds(view, 4) == ["healed"]
