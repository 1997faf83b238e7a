"""A peer that sits a round out: see ``one_machine``."""

from __future__ import annotations

import pytest
from one_machine import FIRST, LAST, LATER, LATER_DIGEST, US, Peer, begin, begun, join, open_, redirect, tokens_at

from prime_p2p.swarm import events as ev


@pytest.fixture
def sitting_out() -> Peer:
    """It has ``LAST`` as a visitor, and sits out."""
    peer = Peer()
    peer.hear(LAST, join())
    peer.did()
    peer.take(ev.SitsOut())
    return peer


def test_a_peer_that_sits_out_tells_those_it_knows_and_whoever_asks(sitting_out: Peer) -> None:
    assert sitting_out.did() == [ev.Send(peer, begun()) for peer in sorted((FIRST, LAST))]
    for message in (open_(hurry=True), join(), redirect(US)):
        sitting_out.hear(FIRST, message)
        assert sitting_out.did() == [ev.Send(FIRST, begun())]


def test_a_peer_that_sits_out_takes_part_when_it_is_ready_after_all(sitting_out: Peer) -> None:
    sitting_out.be_ready()
    sitting_out.hear(FIRST, begin((FIRST, 1), (US, sitting_out.nonce)))
    assert sitting_out.group == {FIRST, US}


def test_a_peer_that_sits_out_takes_part_from_the_next_state(sitting_out: Peer) -> None:
    sitting_out.take(ev.StateChanged(LATER, LATER_DIGEST, tokens_at(LATER)))
    sitting_out.did()
    sitting_out.hear(LAST, open_(hurry=True, step=LATER))
    assert ev.HurryUp() in sitting_out.did()


def test_a_peer_that_sits_out_still_hears_that_a_round_began(sitting_out: Peer) -> None:
    sitting_out.hear(FIRST, begun(FIRST, LAST))
    sitting_out.be_ready()
    assert sitting_out.did()[-1] == ev.Missed("a round began without this peer")


def test_who_is_in_a_group_cannot_sit_out() -> None:
    peer = Peer(sees=(LAST,))
    peer.hear(LAST, join())
    peer.be_ready()
    peer.did()
    peer.take(ev.SitsOut())
    assert peer.did() == []
    assert peer.group == {US, LAST}


def test_a_peer_that_sits_out_is_not_waited_for_until_it_joins() -> None:
    peer = Peer(sees=(LAST,))
    peer.be_ready()
    peer.hear(LAST, begun())
    assert peer.group == {US}
    peer.hear(LAST, join())
    assert peer.said()[-1] == (LAST, begun(US))


def test_a_peer_that_wanted_no_group_when_nobody_gathered_is_asked_again() -> None:
    peer = Peer(sees=(LAST,))
    peer.hear(LAST, begun())
    peer.be_ready()
    assert peer.machine.attempt is None
    assert (LAST, open_()) in peer.said()
    peer.hear(LAST, begun())
    assert peer.group == {US}
