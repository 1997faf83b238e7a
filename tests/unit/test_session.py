"""Which of two processes with one identity ends."""

from __future__ import annotations

import pytest

from prime_p2p.swarm.membership import Heartbeat
from prime_p2p.swarm.session import Session


def beat(session: Session, sent_at: float) -> Heartbeat:
    return Heartbeat(session=session.id, began=session.began, sent_at=sent_at)


def test_the_younger_of_two_that_live_ends_and_the_older_says_so(caplog: pytest.LogCaptureFixture) -> None:
    older, younger = Session(100.0), Session(200.0)
    for sent_at in (201.0, 204.0, 207.0):
        younger.see(beat(older, sent_at))
        older.see(beat(younger, sent_at))
    assert younger.outranked
    assert not older.outranked
    assert caplog.messages == ["another process has this peer's identity; it is the younger one, and is to end"]


def test_of_two_that_began_at_the_same_time_one_ends() -> None:
    one, two = Session(100.0), Session(100.0)
    for sent_at in (101.0, 104.0):
        one.see(beat(two, sent_at))
        two.see(beat(one, sent_at))
    assert one.outranked != two.outranked


@pytest.mark.parametrize(
    "sent_at",
    [
        pytest.param([194.0, 197.0, 200.0], id="all sent before it was killed"),
        pytest.param([190.0, 290.0, 290.0, 290.0], id="the last one by a clock that was ahead"),
    ],
)
def test_one_that_takes_the_place_of_one_that_was_killed_stays(sent_at: list[float]) -> None:
    killed, again = Session(100.0), Session(200.0)
    for one in sent_at:
        again.see(beat(killed, one))
    assert not again.outranked


def test_its_own_heartbeats_and_those_that_name_no_session_are_nobody_else() -> None:
    session = Session(100.0)
    for sent_at in (101.0, 104.0):
        session.see(beat(session, sent_at))
        session.see(Heartbeat(sent_at=sent_at))
    assert not session.outranked
