"""What a machine does while its own way to all others is down: see ``one_machine``."""

from __future__ import annotations

from one_machine import FIRST, LAST, POLICY, US, Peer, join

from prime_p2p.swarm import events as ev
from prime_p2p.swarm import messages as say
from prime_p2p.swarm.events import Phase


def cut_off(peer: Peer, seconds: float) -> None:
    """Let time pass, in which the machine is told again and again that it is cut off."""
    end = peer.now + seconds
    while peer.now < end:
        peer.now += POLICY.tick
        peer.take(ev.CutOff())


def test_a_peer_that_is_cut_off_does_not_go_on_without_those_it_loses() -> None:
    peer = Peer()
    peer.be_ready()
    peer.take(ev.CutOff())
    peer.lose(FIRST)
    peer.lose(LAST)
    cut_off(peer, 10 * (POLICY.patience + POLICY.grace))
    assert peer.machine.phase is Phase.GATHERING
    assert peer.machine.attempts == 0


def test_who_does_not_come_back_when_it_is_over_is_lost() -> None:
    peer = Peer()
    peer.take(ev.CutOff())
    peer.lose(FIRST)
    peer.lose(LAST)
    peer.be_ready()
    cut_off(peer, 30.0)
    peer.wait(POLICY.stall_timeout + POLICY.tick)
    assert peer.group == {US}


def test_who_comes_back_when_it_is_over_is_in_the_next_group() -> None:
    peer = Peer(sees=(LAST,))
    peer.be_ready()
    peer.take(ev.CutOff())
    peer.lose(LAST)
    cut_off(peer, 30.0)
    peer.hear(LAST, join(nonce=1))
    assert peer.group == {US, LAST}


def test_a_group_under_way_ends_when_its_member_is_cut_off_and_its_members_meet_again() -> None:
    peer = Peer(sees=(LAST,))
    peer.be_ready()
    peer.hear(LAST, join(nonce=1))
    assert peer.machine.phase is Phase.REDUCING
    peer.take(ev.CutOff())
    peer.lose(LAST)
    assert peer.machine.phase is Phase.GATHERING
    cut_off(peer, 30.0)
    assert peer.machine.phase is Phase.GATHERING
    peer.hear(LAST, join(nonce=2))
    assert peer.group == {US, LAST}
    assert peer.machine.attempts == 2


def test_a_peer_alone_needs_nobody() -> None:
    peer = Peer(sees=())
    peer.take(ev.CutOff())
    peer.be_ready()
    assert peer.group == {US}
    cut_off(peer, 30.0)
    assert peer.machine.phase is Phase.REDUCING
    assert peer.machine.attempts == 1


def test_a_peer_that_had_lost_everybody_waits_for_all_of_them_once_it_hears_the_first() -> None:
    peer = Peer()
    for other in (FIRST, LAST):
        peer.hear(other, say.Ping())
    for other in (FIRST, LAST):
        peer.lose(other)
    peer.hear(LAST, join(awaited=[FIRST]))
    peer.be_ready()
    assert peer.machine.phase is Phase.GATHERING
    peer.hear(FIRST, join())
    assert peer.group == {FIRST, US, LAST}


def test_a_peer_that_had_lost_everybody_does_not_wait_for_ever() -> None:
    peer = Peer()
    for other in (FIRST, LAST):
        peer.lose(other)
    peer.hear(LAST, join(awaited=[FIRST]))
    peer.be_ready()
    peer.wait(POLICY.detection)
    assert peer.group == {US, LAST}
