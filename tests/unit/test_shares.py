"""Who has contributed what: by groups that signed it, and alone."""

from __future__ import annotations

import csv
import json

import pytest
from certificates import ANNE, BOB, EVE, certificate

from prime_p2p.contributions import report
from prime_p2p.contributions.choice import Wanted
from prime_p2p.contributions.collect import MOST_REJECTED, Collected
from prime_p2p.contributions.shares import Share, shares

CERTIFICATES = [
    certificate(0, {ANNE: 30, BOB: 10}),
    certificate(1, {ANNE: 50, BOB: 0}),
    certificate(2, {BOB: 500}),
    certificate(3, {EVE: 7}),
]
ANNES = Share(ANNE.peer_id, 80, 80 / 90, 2, 1.0, 0, 0)
BOBS = Share(BOB.peer_id, 10, 10 / 90, 1, 0.5, 500, 1)
EVES = Share(EVE.peer_id, 0, 0.0, 0, 0.0, 7, 1)


def test_tokens_and_commits_are_those_of_groups_and_what_was_done_alone_is_apart() -> None:
    assert shares(CERTIFICATES) == [ANNES, BOBS, EVES]
    assert sum(share.token_share for share in shares(CERTIFICATES)) == pytest.approx(1.0)


def test_of_nothing_there_are_no_shares_and_alone_there_is_no_share() -> None:
    assert shares([]) == []
    assert shares(CERTIFICATES[3:]) == [EVES]


def collected() -> Collected:
    found = Collected("demo", 1, asked=[ANNE.peer_id], names={ANNE.peer_id: "anne"}, certificates=CERTIFICATES)
    found.reject(EVE.peer_id, 4, "not\nsigned")
    return found


def test_the_table_has_a_line_for_each_peer_and_one_for_all() -> None:
    lines = report.as_table(collected()).splitlines()
    assert lines[1].split() == ["anne", "80", "88.9%", "2", "100.0%", "0", "0"]
    assert lines[2].split() == [f"…{BOB.peer_id[-8:]}", "10", "11.1%", "1", "50.0%", "500", "1"]
    assert lines[4:] == [
        "run demo, outer steps 1 to 4: 4 with a certificate; 1 of 1 peers asked have answered, 1 rejected"
    ]


def test_csv_and_json_have_the_same_numbers() -> None:
    rows = list(csv.DictReader(report.as_csv(collected()).splitlines()))
    assert [(row["peer_id"], int(row["tokens"])) for row in rows] == [
        (ANNE.peer_id, 80),
        (BOB.peer_id, 10),
        (EVE.peer_id, 0),
    ]
    found = json.loads(report.as_json(collected()))
    assert [(peer["peer_id"], peer["tokens"]) for peer in found["peers"]] == [
        (row["peer_id"], int(row["tokens"])) for row in rows
    ]
    assert (found["first_outer_step"], found["last_outer_step"], found["outer_steps_of_groups"]) == (1, 4, 2)
    assert found["rejected"] == [{"peer_id": EVE.peer_id, "outer_step": 5, "reason": "not\\nsigned"}]


def test_a_run_without_certificates_is_told_in_words() -> None:
    empty = Collected("demo", 9999, asked=[ANNE.peer_id])
    empty.reject(BOB.peer_id, None, "no answer")
    assert report.as_table(empty) == (
        "run demo: no outer step from 9999 on has a certificate; 1 of 2 peers asked have answered, 1 rejected"
    )
    assert json.loads(report.as_json(empty))["peers"] == []


def test_what_was_rejected_is_bounded() -> None:
    found = collected()
    for step in range(2 * MOST_REJECTED):
        found.reject(EVE.peer_id, step, "no")
    assert len(found.rejected) == MOST_REJECTED


# ---- what is fetched from whom


def ids(**steps: bytes) -> dict[int, bytes]:
    return {int(step[1:]): id_ for step, id_ in steps.items()}


def ordered(wanted: Wanted, most: int = 10) -> dict[int, bytes]:
    return {step: id_ for order in wanted.orders(most).values() for step, id_ in order.items()}


def test_of_two_certificates_that_which_more_peers_hold_is_wanted_and_of_equals_the_smaller() -> None:
    wanted = Wanted({"a": ids(s1=b"x", s2=b"y"), "b": ids(s1=b"z", s2=b"x"), "c": ids(s1=b"z")})
    assert ordered(wanted) == {1: b"z", 2: b"x"}


def test_orders_are_spread_over_the_holders_the_newest_first_and_bounded() -> None:
    held = dict.fromkeys(range(9), b"x")
    orders = Wanted({"a": held, "b": held, "c": {8: b"x"}}).orders(3)
    assert sorted(len(order) for order in orders.values()) == [3, 3]
    assert {step for order in orders.values() for step in order} == set(range(3, 9))
    assert all(list(order) == sorted(order, reverse=True) for order in orders.values())


def test_after_one_that_is_refused_the_next_is_wanted_and_in_the_end_nothing() -> None:
    wanted = Wanted({"a": ids(s1=b"x"), "b": ids(s1=b"x"), "c": ids(s1=b"y", s2=b"y")})
    wanted.refuse("a", 1)
    wanted.refuse("b", 1)
    assert ordered(wanted) == {1: b"y", 2: b"y"}
    wanted.done(1)
    assert ordered(wanted) == {2: b"y"}
    wanted.lose("c")
    assert not wanted


def test_what_few_hold_is_not_wanted_and_named() -> None:
    wanted = Wanted({"a": ids(s1=b"x"), "b": ids(s1=b"x"), "c": ids(s1=b"y", s99=b"y")}, least=2)
    assert ordered(wanted) == {1: b"x"}
    assert wanted.held_by_few == [("c", 1), ("c", 99)]


def test_only_what_is_lacking_is_wanted() -> None:
    assert ordered(Wanted({"a": ids(s1=b"x", s2=b"y")}, lambda step: step > 1)) == {2: b"y"}
