"""What one machine does when a group has failed, and around a commit: see ``one_machine``."""

from __future__ import annotations

import pytest
from one_machine import (
    DIGEST,
    FIRST,
    LAST,
    LATER,
    LATER_DIGEST,
    POLICY,
    STEP,
    US,
    Peer,
    begin,
    begun,
    elsewhere,
    join,
    open_,
    redirect,
    tokens_at,
)

from prime_p2p.swarm import events as ev
from prime_p2p.swarm import messages as say
from prime_p2p.swarm.events import Phase
from prime_p2p.swarm.groups import lead_order


def committed(group_id: bytes) -> say.Committed:
    """With the votes of two members, as ``leading`` and these tests make them."""
    return say.Committed(group_id=group_id, update_digest=bytes(32), signatures=[bytes(64)] * 2)


@pytest.fixture
def peer() -> Peer:
    return Peer()


@pytest.fixture
def joined(peer: Peer) -> Peer:
    """It has joined ``FIRST``, the best leader, with nonce 10."""
    peer.be_ready()
    assert peer.said() == [(FIRST, join(10, awaited=sorted([FIRST, LAST])))]
    return peer


@pytest.fixture
def leading() -> Peer:
    """It leads, ready itself, because ``FIRST`` is lost; ``LAST`` is expected."""
    peer = Peer()
    peer.lose(FIRST)
    peer.be_ready()
    assert peer.said() == [(LAST, open_())]
    return peer


# ---- when a group has failed


@pytest.fixture
def failed(leading: Peer) -> Peer:
    """Its group with ``LAST``, nonce 5, has failed."""
    leading.hear(LAST, join(nonce=5))
    assert leading.machine.attempt is not None
    leading.hear(LAST, say.Abort(group_id=leading.machine.attempt.group.id, blamed=[]))
    assert leading.machine.phase is Phase.GATHERING
    leading.did()
    return leading


def test_its_members_meet_again_each_with_a_new_join(failed: Peer) -> None:
    failed.hear(LAST, join(nonce=5))
    assert failed.machine.attempt is None
    failed.hear(LAST, join(nonce=6))
    assert failed.group == {US, LAST}
    assert failed.machine.attempts == 2


def test_it_is_closed_to_all_others(failed: Peer) -> None:
    failed.hear(FIRST, join(), open_())
    assert failed.said() == [(FIRST, begun(US, LAST))] * 2


def test_none_of_its_members_goes_to_an_outsider(failed: Peer) -> None:
    outsider = lead_order("run", STEP, [US, *(f"other-{index:04}" for index in range(99))])[0]
    assert outsider != US
    failed.hear(LAST, redirect(outsider))
    assert failed.said() == []


def test_a_member_that_misses_the_round_tells_the_others(failed: Peer) -> None:
    failed.hear("stranger", elsewhere(LATER))
    assert failed.said() == [(LAST, begun(LAST))]
    assert failed.machine.phase is Phase.TRAINING


def test_members_that_gave_it_up_in_doubt_follow_one_who_has_committed_it(leading: Peer) -> None:
    leading.hear(LAST, join(nonce=5))
    assert leading.machine.attempt is not None
    group_id = leading.machine.attempt.group.id
    leading.take(ev.ReduceDone(group_id, bytes(32), bytes(64)))
    leading.hear(LAST, say.Doubt(group_id=group_id, lost={LAST: []}))
    assert leading.machine.phase is Phase.GATHERING
    leading.did()
    leading.hear(LAST, say.Doubt(group_id=group_id, lost={LAST: [], US: []}))
    assert leading.said() == []  # it knows already
    leading.hear(LAST, committed(group_id))
    assert leading.did()[-1] == ev.Missed("others committed a group that this peer gave up", contributed=True)


def test_a_member_that_gives_up_is_not_waited_for(failed: Peer) -> None:
    failed.hear(LAST, begun(US))
    assert failed.group == {US}


def test_a_member_is_left_out_when_our_reduce_has_blamed_it_twice(failed: Peer) -> None:
    for nonce in (6, 7):
        failed.hear(LAST, join(nonce))
        assert failed.group == {US, LAST}
        assert failed.machine.attempt is not None
        failed.take(ev.ReduceFailed(failed.machine.attempt.group.id, frozenset({LAST})))
    failed.hear(LAST, join(8))
    assert failed.group in ({US}, {LAST})


@pytest.mark.parametrize("blames_us", [False, True])
def test_blame_is_taken_back_when_a_member_says_that_it_stopped_for_another_reason(
    failed: Peer, blames_us: bool
) -> None:
    for nonce in (6, 7):
        failed.hear(LAST, join(nonce))
        assert failed.machine.attempt is not None
        group_id = failed.machine.attempt.group.id
        failed.take(ev.ReduceFailed(group_id, frozenset({LAST})))
        failed.hear(LAST, say.Abort(group_id=group_id, blamed=[US] if blames_us else ["stranger"]))
    failed.hear(LAST, join(8))
    assert (failed.group == {US, LAST}) is not blames_us


def test_after_many_failed_groups_a_peer_trains_on(failed: Peer) -> None:
    for nonce in range(6, 20):
        failed.hear(LAST, join(nonce))
        if failed.machine.attempt is None:
            break
        failed.hear(LAST, say.Abort(group_id=failed.machine.attempt.group.id, blamed=[]))
    assert ev.Missed("8 groups failed") in failed.did()


# ---- around a commit


@pytest.fixture
def applying() -> Peer:
    """It has committed a group of its own from ``STEP``."""
    peer = Peer(sees=())
    peer.be_ready()
    assert peer.machine.attempt is not None
    peer.take(ev.ReduceDone(peer.machine.attempt.group.id, bytes(32), bytes(64)))
    assert peer.machine.phase is Phase.APPLYING
    peer.did()
    return peer


def test_joins_to_the_next_state_wait_until_we_hold_it(applying: Peer) -> None:
    applying.hear(LAST, join(nonce=1, step=LATER))
    applying.hear(FIRST, join(nonce=1, step=LATER), say.Withdraw(nonce=1))
    assert applying.did() == []
    applying.take(ev.StateChanged(LATER, LATER_DIGEST, tokens_at(LATER)))
    applying.be_ready()
    applying.wait(POLICY.patience + POLICY.grace)
    assert applying.group == {US, LAST}


def test_joins_to_another_next_state_than_ours_are_answered_when_we_hold_it(applying: Peer) -> None:
    applying.hear(LAST, join(step=LATER))
    applying.take(ev.StateChanged(LATER, b"f" * 32, tokens_at(LATER)))
    assert applying.said() == [(LAST, elsewhere(LATER, b"f" * 32))]


def test_a_join_to_the_state_that_we_leave_is_told_that_a_round_began(applying: Peer) -> None:
    applying.hear(LAST, join())
    assert applying.said() == [(LAST, begun(US))]


def test_a_training_peer_does_not_keep_anybody_waiting_for_a_state_it_does_not_hold(peer: Peer) -> None:
    peer.hear(LAST, open_(step=LATER))
    assert peer.said() == [(LAST, elsewhere(STEP, DIGEST))]


def test_visitors_are_told_when_their_leader_moves_to_another_state(peer: Peer) -> None:
    peer.hear(LAST, join())
    peer.did()
    peer.take(ev.StateChanged(LATER, LATER_DIGEST, tokens_at(LATER)))
    assert peer.said() == [(LAST, elsewhere(LATER))]


def test_to_hold_the_same_state_again_changes_nothing(joined: Peer) -> None:
    joined.take(ev.StateChanged(STEP, DIGEST))
    assert joined.machine.phase is Phase.GATHERING
    joined.hear(FIRST, begin((FIRST, 1), (US, 10)))
    assert joined.group == {FIRST, US}


def test_a_newcomer_is_waited_for_once_it_has_taken_part() -> None:
    peer = Peer(sees=(LAST,), expected=False)
    peer.hear(LAST, join())
    peer.be_ready()
    assert peer.machine.attempt is not None
    group_id = peer.machine.attempt.group.id
    peer.take(ev.ReduceDone(group_id, bytes(32), bytes(64)))
    peer.hear(LAST, say.Vote(group_id=group_id, update_digest=bytes(32), signature=bytes(64)))
    peer.take(ev.StateChanged(LATER, LATER_DIGEST, tokens_at(LATER)))
    peer.be_ready()
    peer.hear(LAST, redirect(US).model_copy(update={"step": LATER, "digest": LATER_DIGEST}))
    assert peer.machine.attempt is None
    peer.hear(LAST, join(step=LATER))
    assert peer.group == {US, LAST}


def test_who_asks_for_a_group_that_is_over_hears_how_it_ended(leading: Peer) -> None:
    leading.hear(LAST, join())
    assert leading.machine.attempt is not None
    group_id = leading.machine.attempt.group.id
    leading.take(ev.ReduceDone(group_id, bytes(32), bytes(64)))
    leading.hear(LAST, say.Vote(group_id=group_id, update_digest=bytes(32), signature=bytes(64)))
    leading.did()
    leading.hear(LAST, say.Doubt(group_id=group_id, lost={LAST: []}))
    assert leading.said() == [(LAST, committed(group_id))]


def test_a_peer_that_says_that_it_leaves_is_not_waited_for(leading: Peer) -> None:
    leading.hear(LAST, say.Leave())
    assert leading.group == {US}


def test_who_goes_by_other_terms_is_in_no_group_with_us(peer: Peer) -> None:
    peer.take(ev.Ready(weight=1, bandwidth=1.0, terms=b"ours"))
    peer.lose(FIRST)
    peer.did()
    peer.hear(LAST, join(nonce=5, terms=b"theirs"))
    assert (LAST, begun()) in peer.said()
    assert peer.group == {US}


def test_who_goes_by_the_same_terms_is(peer: Peer) -> None:
    peer.take(ev.Ready(weight=1, bandwidth=1.0, terms=b"ours"))
    peer.lose(FIRST)
    peer.hear(LAST, join(nonce=5, terms=b"ours"))
    assert peer.group == {US, LAST}
