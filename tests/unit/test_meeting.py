"""How one machine finds its group, message by message: see ``one_machine``."""

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
from prime_p2p.swarm.gathering import Seen
from prime_p2p.swarm.groups import Group, Member


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
def leading(peer: Peer) -> Peer:
    """It leads, ready itself, because ``FIRST`` is lost; ``LAST`` is expected."""
    peer.lose(FIRST)
    peer.be_ready()
    assert peer.said() == [(LAST, open_())]
    return peer


# ---- as a member


def test_a_group_begins_with_the_join_that_the_leader_has(joined: Peer) -> None:
    joined.hear(FIRST, begin((FIRST, 1), (US, 10)))
    assert joined.machine.phase is Phase.REDUCING
    assert joined.group == {FIRST, US}
    assert isinstance(joined.did()[0], ev.Send)  # to LAST, which is not in it: that the round has begun


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        (FIRST, begin((FIRST, 1), (US, 9))),  # an older join
        (LAST, begin((LAST, 1), (US, 10))),  # not from the leader we have joined
        (FIRST, say.Begin(step=STEP, digest=LATER_DIGEST, members=begin((FIRST, 1), (US, 10)).members)),
    ],
)
def test_a_begin_that_does_not_fit_is_refused_and_everyone_in_it_told(
    joined: Peer, sender: str, message: say.Begin
) -> None:
    joined.hear(sender, message)
    assert joined.machine.attempt is None
    assert sender in [to for to, said in joined.said() if isinstance(said, say.Abort)]


def test_a_begin_for_a_group_that_somebody_has_aborted_is_refused_and_the_join_renewed(joined: Peer) -> None:
    group = Group("run", STEP, DIGEST, (Member(FIRST, 1, 1, 1.0), Member(US, 10, 1, 1.0)))
    joined.hear(LAST, say.Abort(group_id=group.id, blamed=[]))
    joined.hear(FIRST, begin((FIRST, 1), (US, 10)))
    assert joined.machine.attempt is None
    assert joined.nonce == 11


def test_a_begin_that_names_a_peer_twice_is_ignored(joined: Peer) -> None:
    joined.hear(FIRST, begin((US, 10), (US, 10)))
    assert joined.machine.attempt is None
    assert joined.did() == []


def test_a_training_peer_refuses_a_group(peer: Peer) -> None:
    peer.hear(FIRST, begin((FIRST, 1), (US, 10)))
    assert peer.machine.phase is Phase.TRAINING
    assert [type(message) for _, message in peer.said()] == [say.Abort]


def test_a_leader_that_is_lost_is_replaced_by_the_next(joined: Peer) -> None:
    joined.lose(FIRST)
    assert joined.said() == [(LAST, open_())]


def test_a_leader_that_does_not_begin_in_time_is_replaced_by_the_next(joined: Peer) -> None:
    joined.wait(2 * POLICY.longest_gathering)
    withdrawn, *opened = joined.said()
    assert withdrawn == (FIRST, say.Withdraw(nonce=10))
    assert sorted(opened, key=str) == sorted([(FIRST, open_()), (LAST, open_())], key=str)


def test_a_leader_that_lost_us_without_our_notice_gets_the_join_again(joined: Peer) -> None:
    joined.hear(FIRST, open_())
    assert joined.said() == [(FIRST, join(10, awaited=sorted([FIRST, LAST])))]


def test_of_two_leaders_the_better_is_joined_and_the_other_sent_there(peer: Peer) -> None:
    peer.hear(LAST, open_())
    peer.be_ready()
    assert [to for to, message in peer.said() if isinstance(message, say.Join)] == [LAST]
    peer.hear(FIRST, open_())
    assert peer.said() == [
        (LAST, say.Withdraw(nonce=10)),
        (FIRST, join(11, awaited=sorted([FIRST, LAST]))),
        (LAST, redirect(FIRST, sorted([FIRST, LAST]))),
    ]
    peer.hear(LAST, open_())
    assert peer.said() == [(LAST, redirect(FIRST, sorted([FIRST, LAST])))]


def test_a_training_peer_answers_a_leader_with_whom_else_it_knows(peer: Peer) -> None:
    peer.hear(LAST, open_())
    assert peer.said() == [(LAST, redirect(LAST, sorted([FIRST, LAST])))]


def test_a_training_peer_hurries_when_its_leader_says_so(peer: Peer) -> None:
    peer.hear(FIRST, open_())
    peer.hear(LAST, open_(hurry=True))
    assert ev.HurryUp() not in peer.did()
    peer.hear(FIRST, open_(hurry=True))
    assert ev.HurryUp() in peer.did()


def test_a_peer_told_that_a_round_began_without_it_misses_it_once(peer: Peer) -> None:
    peer.hear(FIRST, begun(FIRST, LAST))
    peer.be_ready()
    assert peer.did() == [ev.Missed("a round began without this peer")]
    peer.be_ready()
    assert peer.machine.phase is Phase.GATHERING


def test_what_others_say_of_a_round_that_they_are_not_in_only_frees_us_from_waiting_for_them(leading: Peer) -> None:
    leading.hear(LAST, begun(FIRST))
    assert leading.group == {US}


def test_a_peer_whose_companion_is_seen_further_on_misses_the_round(joined: Peer) -> None:
    joined.see({LAST: Seen(LAST, LATER, LATER_DIGEST, tokens=tokens_at(LATER))})
    assert ev.Missed(f"others are at outer step {LATER} already") in joined.did()


def test_a_peer_seen_further_on_that_was_never_here_is_none_of_our_business(joined: Peer) -> None:
    joined.see({"stranger": Seen("stranger", LATER, LATER_DIGEST, tokens=tokens_at(LATER))})
    assert joined.machine.phase is Phase.GATHERING


def test_a_visitor_is_told_at_once_that_its_leader_is_too_late(peer: Peer) -> None:
    peer.hear(LAST, join())
    peer.did()
    peer.hear(FIRST, begun(FIRST))
    assert peer.said() == [(LAST, begun(FIRST))]


def test_a_peer_that_was_frozen_does_not_suspect_those_who_lost_it(joined: Peer) -> None:
    joined.now += 20.0
    joined.lose(LAST)
    joined.hear(FIRST, open_())
    assert joined.said() == [(FIRST, join(10, awaited=sorted([FIRST, LAST])))]


# ---- as the leader


def test_whoever_is_asked_leads_ready_or_not_and_tells_all(peer: Peer) -> None:
    peer.hear(LAST, join())
    assert peer.said() == [(FIRST, open_())]
    peer.hear(FIRST, redirect(US))
    peer.wait(POLICY.patience)
    assert ev.HurryUp() in peer.did()
    peer.wait(POLICY.grace)
    assert [type(message) for to, message in peer.said() if to == LAST] == [say.Begin]
    assert peer.machine.phase is Phase.TRAINING
    peer.be_ready()
    assert peer.did() == [ev.Missed("a round began without this peer")]


def test_a_group_begins_when_everyone_expected_is_there(leading: Peer) -> None:
    leading.hear(LAST, join())
    assert leading.group == {US, LAST}


def test_a_leader_waits_for_those_that_its_visitors_know(leading: Peer) -> None:
    leading.hear(LAST, join(awaited=["stranger"]))
    assert leading.machine.attempt is None
    assert leading.said() == [("stranger", open_())]
    leading.lose("stranger")
    leading.hear(LAST, join(suspects=["stranger"]))
    assert leading.group == {US, LAST}


def test_a_leader_that_alone_has_lost_a_peer_waits_for_it_as_long_as_the_others_may_take_to_lose_it_too(
    leading: Peer,
) -> None:
    leading.lose("stranger")
    leading.hear(LAST, join(awaited=["stranger"]))
    assert leading.machine.phase is Phase.GATHERING
    leading.wait(POLICY.detection)
    assert leading.group == {US, LAST}


def test_a_peer_that_only_its_leader_had_lost_is_in_the_group_once_it_is_back(leading: Peer) -> None:
    leading.lose("stranger")
    leading.hear(LAST, join(awaited=["stranger"]))
    leading.hear("stranger", join())
    assert leading.group == {US, LAST, "stranger"}


def test_a_member_tells_its_leader_whom_it_has_lost(joined: Peer) -> None:
    joined.lose(LAST)
    assert joined.said() == [(FIRST, join(10, suspects=[LAST]).model_copy(update={"awaited": [FIRST]}))]


def test_a_newcomer_is_not_waited_for_but_its_answer_is() -> None:
    peer = Peer(sees=(LAST,), expected=False)
    peer.be_ready()
    assert peer.said() == [(LAST, open_(hurry=True))]
    peer.hear(LAST, redirect(US))
    assert peer.group == {US}
    assert (LAST, begun(US)) in peer.said()


def test_a_peer_last_seen_elsewhere_is_asked_before_a_group_begins_without_it() -> None:
    peer = Peer(sees=())
    peer.see({LAST: Seen(LAST, STEP - 1, bytes(32))})
    peer.be_ready()
    assert peer.said() == [(LAST, open_())]
    peer.hear(LAST, redirect(US))
    peer.wait(1.0)
    assert peer.machine.attempt is None  # it has come here since
    peer.hear(LAST, join())
    assert peer.group == {US, LAST}


def test_a_peer_that_is_in_touch_is_asked_even_if_no_view_shows_it() -> None:
    peer = Peer(sees=())
    peer.hear("stranger", say.Ping())
    peer.be_ready()
    assert peer.said() == [("stranger", open_())]
    peer.hear("stranger", elsewhere(0, bytes(32)))
    assert peer.group == {US}


def test_a_peer_missing_in_a_view_is_not_gone() -> None:
    peer = Peer(sees=())
    peer.see({LAST: Seen(LAST, STEP - 1, bytes(32))})
    peer.see({})
    peer.be_ready()
    assert peer.said() == [(LAST, open_())]


def test_a_peer_that_was_lost_is_told_again_when_it_comes_back(peer: Peer) -> None:
    peer.hear(LAST, join())
    assert peer.said() == [(FIRST, open_())]
    peer.lose(FIRST)
    peer.hear(FIRST, say.Ping())
    assert peer.said() == [(FIRST, open_())]


def test_a_leader_that_gathers_anew_tells_everyone_again(peer: Peer) -> None:
    for nonce in (1, 2):
        peer.hear(LAST, join(nonce))
        assert peer.said() == [(FIRST, open_())]
        peer.hear(LAST, say.Withdraw(nonce=nonce))


@pytest.mark.parametrize("step", [STEP - 1, STEP, STEP + 9])
def test_a_peer_that_holds_another_state_is_not_waited_for(leading: Peer, step: int) -> None:
    leading.hear(LAST, elsewhere(step, tokens=tokens_at(STEP) - 1))
    assert leading.group == {US}


def test_a_leader_that_hears_of_a_later_state_misses_the_round_and_sends_its_visitors_away(leading: Peer) -> None:
    leading.hear("stranger", join())
    leading.hear(LAST, elsewhere(LATER))
    assert leading.machine.phase is Phase.TRAINING
    assert ("stranger", begun()) in leading.said()


def test_a_leader_hands_its_visitors_over_to_a_better_one(leading: Peer) -> None:
    leading.hear("stranger", join())
    leading.said()
    leading.hear(FIRST, open_())
    assert [(to, message.leader) for to, message in leading.said() if isinstance(message, say.Redirect)] == [
        ("stranger", FIRST)
    ]


def test_a_leader_out_of_our_reach_keeps_us_from_beginning_beside_it(leading: Peer) -> None:
    leading.hear(LAST, redirect(FIRST))
    leading.wait(POLICY.patience + POLICY.grace)
    assert leading.machine.attempt is None
    leading.hear(LAST, begun(FIRST, LAST))
    assert leading.did()[-1] == ev.Missed("a round began without this peer")


def test_a_visitor_that_cannot_reach_our_leader_is_kept_for_when_it_is_lost(peer: Peer) -> None:
    peer.hear(FIRST, open_())
    peer.hear(LAST, join(suspects=[FIRST]))
    peer.be_ready()
    peer.lose(FIRST)
    assert peer.group == {US, LAST}


def test_a_training_peer_leads_the_visitors_it_kept_once_their_leader_is_lost(peer: Peer) -> None:
    peer.hear(FIRST, open_())
    peer.hear(LAST, join(suspects=[FIRST]))
    peer.did()
    peer.lose(FIRST)
    peer.wait(POLICY.patience)
    assert peer.did() == [ev.HurryUp()]


def test_a_visitor_that_takes_its_join_back_is_not_in_the_group(leading: Peer) -> None:
    leading.hear("stranger", join(nonce=5), say.Withdraw(nonce=4))
    leading.hear(LAST, join(nonce=5))
    assert "stranger" in leading.group

    other = Peer()
    other.lose(FIRST)
    other.be_ready()
    other.hear("stranger", join(nonce=5), say.Withdraw(nonce=5))
    other.hear(LAST, join(nonce=5))
    other.wait(POLICY.patience + POLICY.grace)
    assert other.group == {US, LAST}


def test_a_group_in_which_nobody_has_trained_does_not_begin() -> None:
    peer = Peer(sees=())
    peer.take(ev.Ready(weight=0, bandwidth=1.0))
    assert peer.did() == [ev.Missed("nobody in the group has trained")]


def test_a_peer_that_was_frozen_does_not_begin_without_those_who_lost_it(leading: Peer) -> None:
    leading.now += 20.0
    leading.lose(LAST)
    assert leading.machine.attempt is None
    leading.wait(POLICY.stall_timeout)
    assert leading.group == {US}


def test_a_peer_further_on_in_a_lineage_of_fewer_tokens_is_about_to_come_to_ours(leading: Peer) -> None:
    leading.see({LAST: Seen(LAST, STEP + 40, LATER_DIGEST, tokens=tokens_at(STEP) - 1)})
    leading.hear("stranger", join())
    leading.hear(LAST, elsewhere(STEP + 40, tokens=tokens_at(STEP) - 1))
    assert leading.group == {US, "stranger"}


def test_a_peer_not_so_far_on_in_a_lineage_of_more_tokens_is_to_be_followed(leading: Peer) -> None:
    leading.hear(LAST, elsewhere(STEP - 2, tokens=tokens_at(STEP) + 1))
    assert ev.Missed(f"others are at outer step {STEP - 2} already") in leading.did()
