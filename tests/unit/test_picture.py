"""A view as plain values."""

from __future__ import annotations

import json

from watched_runs import START, beat, made, peer_id, run_of

from prime_p2p.watching.picture import MOST_ROUNDS, picture, present
from prime_p2p.watching.view import RunView


def test_a_picture_is_json_with_peers_rounds_losses_and_events() -> None:
    view = run_of(3, steps=4, run="demo/author")
    view.heard(peer_id(1), [made(5, (peer_id(1),), val_loss=2.5)], START)
    found = json.loads(json.dumps(picture(view, START + 2), allow_nan=False))
    assert (found["run"], found["name"], found["outer_step"], found["at"]) == ("demo/author", "demo", 4, START + 2)
    assert [one["outer_step"] for one in found["rounds"]] == [1, 2, 3, 4, 5]
    assert found["round"] == found["rounds"][-1]
    assert [step for step, _ in found["losses"]["train"]] == [1, 2, 3, 4, 5]
    assert found["losses"]["validation"] == [[5, 2.5]]
    assert [event["kind"] for event in found["events"]] == ["joined"] * 3
    assert found["phases"] == {"training": 3}
    peer = found["peers"][1]
    assert (peer["name"], peer["seen"], peer["tells"], peer["odd"]) == ("peer-1", 2.0, True, False)
    assert peer["seconds"]["inner"] == 18.2


def test_a_run_of_which_little_is_known_has_a_picture_too() -> None:
    empty = picture(RunView("demo"), START)
    assert (empty["peers"], empty["round"], empty["loss"], empty["compute_share"]) == ([], None, None, None)
    view = RunView("demo")
    view.looked({peer_id(0): beat(0, 0, START, digest=b"")}, START)
    (peer,) = picture(view, START)["peers"]
    assert (peer["tells"], peer["digest"], peer["loss"], peer["seconds"]) == (False, "", None, None)


def test_a_picture_of_a_long_run_has_the_newest_rounds_and_the_present_has_only_the_last() -> None:
    view = run_of(3, steps=0)
    for number in range(3):
        view.heard(peer_id(number), [made(step, ()) for step in range(100 * number, 100 * number + 100)], START)
    view.heard(peer_id(1), [made(299, ())], START)
    found = picture(view, START)
    assert [one["outer_step"] for one in found["rounds"]] == list(range(300 - MOST_ROUNDS, 300))
    assert len(found["losses"]["train"]) == MOST_ROUNDS
    assert not {"rounds", "losses", "events"} & present(view, START).keys()
