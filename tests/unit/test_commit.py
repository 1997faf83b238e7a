"""One group, from begin to commit or failure, as one member sees it: "member-a", with "member-b" and "member-c"."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from prime_p2p.network.frames import Message
from prime_p2p.swarm import events as ev
from prime_p2p.swarm import messages as say
from prime_p2p.swarm.certificate import Certificate
from prime_p2p.swarm.commit import Attempt, Outcome
from prime_p2p.swarm.context import RoundContext
from prime_p2p.swarm.events import Phase
from prime_p2p.swarm.gathering import RoundPolicy
from prime_p2p.swarm.groups import Group, Member

ME, B, C = "member-a", "member-b", "member-c"
GROUP = Group("run", 3, bytes(32), tuple(Member(peer, 0, 1, 1.0) for peer in (ME, B, C)))
POLICY = RoundPolicy(stall_timeout=5.0)
UPDATE, OTHER_UPDATE, SIGNATURE = b"u" * 32, b"v" * 32, b"s" * 64
OTHER_SIGNATURE = b"t" * 64
ABORT = say.Abort(group_id=GROUP.id, blamed=[])
COMMITTED = say.Committed(group_id=GROUP.id, update_digest=UPDATE, signatures=[SIGNATURE] * 3)


def vote(update: bytes = UPDATE, signature: bytes = SIGNATURE) -> say.Vote:
    return say.Vote(group_id=GROUP.id, update_digest=update, signature=signature)


def doubt(**lost: list[str]) -> say.Doubt:
    return say.Doubt(group_id=GROUP.id, lost={f"member-{letter}": peers for letter, peers in lost.items()})


class Member_:
    """An attempt of "member-a", and what it has said."""

    def __init__(self, lost: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        self.context = RoundContext("run", ME, POLICY)
        for peer in lost:
            self.context.lose(peer)
        self.attempt = Attempt(self.context, GROUP, now=0.0)
        self.actions = self.context.take_actions()

    def said(self) -> dict[str, list[Message]]:
        said: dict[str, list[Message]] = {}
        for action in self.context.take_actions():
            if isinstance(action, ev.Send):
                said.setdefault(action.to, []).append(action.message)
        return said

    def lose(self, *peers: str) -> None:
        for peer in peers:
            self.context.lose(peer)
            self.attempt.lose(peer, now=2.0)

    def hear(self, sender: str, *messages: say.AboutGroup) -> None:
        for message in messages:
            self.attempt.receive(sender, message, now=2.0)

    @property
    def outcome(self) -> Outcome | None:
        return self.attempt.outcome

    @property
    def phase(self) -> Phase:
        return self.attempt.phase


@pytest.fixture
def reducing() -> Member_:
    return Member_()


@pytest.fixture
def voting(reducing: Member_) -> Member_:
    reducing.attempt.reduced(UPDATE, SIGNATURE, now=1.0)
    assert reducing.said() == {B: [vote()], C: [vote()]}
    return reducing


@pytest.fixture
def in_doubt(voting: Member_) -> Member_:
    """It has lost "member-c", whose vote it misses."""
    voting.lose(C)
    assert voting.phase is Phase.UNCERTAIN
    assert voting.said() == {B: [doubt(a=[C])]}
    return voting


def test_an_attempt_starts_with_its_reduce(reducing: Member_) -> None:
    assert reducing.actions == [ev.StartReduce(GROUP)]
    assert reducing.phase is Phase.REDUCING


def test_a_member_commits_with_the_vote_of_everyone(voting: Member_) -> None:
    voting.hear(B, vote())
    assert voting.outcome is None
    voting.hear(C, vote(signature=OTHER_SIGNATURE))
    assert voting.outcome is Outcome.COMMITTED
    assert voting.said() == {}
    assert voting.attempt.certificate == Certificate(GROUP, UPDATE, (SIGNATURE, SIGNATURE, OTHER_SIGNATURE))


def test_votes_that_come_before_the_own_reduce_is_complete_count(reducing: Member_) -> None:
    reducing.hear(B, vote())
    reducing.hear(C, vote())
    assert reducing.outcome is None
    reducing.attempt.reduced(UPDATE, SIGNATURE, now=1.0)
    assert reducing.outcome is Outcome.COMMITTED


def test_a_vote_of_somebody_else_does_not_count(voting: Member_) -> None:
    voting.hear(B, vote())
    voting.hear("somebody", vote())
    assert voting.outcome is None


def test_with_votes_that_differ_nobody_commits_and_the_minority_is_suspected(voting: Member_) -> None:
    voting.hear(B, vote(OTHER_UPDATE))
    voting.hear(C, vote())
    assert voting.outcome is Outcome.FAILED
    assert voting.attempt.suspects == {B}
    assert voting.said() == {B: [ABORT], C: [ABORT]}


def _fail_reduce(member: Member_) -> None:
    member.attempt.reduce_failed(frozenset({B}))


@pytest.mark.parametrize(
    "event",
    [
        _fail_reduce,
        lambda member: member.lose(B),
        lambda member: member.hear(B, ABORT),
        lambda member: member.hear(B, doubt(b=[])),
        lambda member: member.attempt.thaw(2.0),
    ],
)
def test_a_member_that_has_not_voted_aborts_for_all(reducing: Member_, event: Callable[[Member_], None]) -> None:
    event(reducing)
    assert reducing.outcome is Outcome.FAILED
    blamed = [B] if event is _fail_reduce else []
    assert reducing.attempt.last_word == say.Abort(group_id=GROUP.id, blamed=blamed)
    assert reducing.said()[C] == [reducing.attempt.last_word]


def test_a_member_that_joins_a_group_with_a_lost_one_aborts_at_once() -> None:
    member = Member_(lost={C})
    assert member.outcome is Outcome.FAILED
    assert member.actions == [ev.StartReduce(GROUP), ev.Send(B, ABORT), ev.StopReduce(GROUP.id)]


def test_who_is_blamed_by_the_reduce_is_no_suspect_yet(reducing: Member_) -> None:
    reducing.attempt.reduce_failed(frozenset({B, ME}))
    assert reducing.attempt.blamed == {B}
    assert reducing.attempt.suspects == set()
    assert reducing.said()[C] == [say.Abort(group_id=GROUP.id, blamed=[B])]


@pytest.mark.parametrize("state", ["voting", "in_doubt"])
def test_an_abort_ends_the_group_whatever_this_member_knew(state: str, request: pytest.FixtureRequest) -> None:
    member: Member_ = request.getfixturevalue(state)
    member.said()
    member.hear(B, ABORT)
    assert member.outcome is Outcome.FAILED
    assert member.said() == {}
    assert member.attempt.last_word == ABORT


def test_a_lost_member_that_has_voted_is_not_missed(voting: Member_) -> None:
    voting.hear(C, vote())
    voting.lose(C)
    assert voting.outcome is None
    voting.hear(B, vote())
    assert voting.outcome is Outcome.COMMITTED


def test_in_doubt_votes_count_no_more(in_doubt: Member_) -> None:
    in_doubt.hear(C, vote())
    in_doubt.hear(B, vote())
    assert in_doubt.outcome is None


def test_in_doubt_a_member_commits_when_somebody_has_and_passes_it_on(in_doubt: Member_) -> None:
    in_doubt.hear(B, COMMITTED)
    assert in_doubt.outcome is Outcome.COMMITTED
    assert in_doubt.said() == {B: [COMMITTED]}
    assert in_doubt.attempt.certificate == Certificate(GROUP, UPDATE, (SIGNATURE,) * 3)


def test_a_member_that_has_not_voted_believes_nobody_that_the_group_is_committed(reducing: Member_) -> None:
    reducing.hear(B, COMMITTED)
    assert reducing.outcome is None


def test_a_member_that_hears_a_doubt_falls_into_doubt_too(voting: Member_) -> None:
    voting.hear(B, doubt(b=[C]))
    assert voting.phase is Phase.UNCERTAIN
    assert voting.said() == {B: [doubt(a=[], b=[C])], C: [doubt(a=[], b=[C])]}
    assert voting.outcome is None  # it can reach "member-c", which may have committed


def test_all_give_up_when_the_one_whose_vote_is_missing_is_lost_to_all(in_doubt: Member_) -> None:
    in_doubt.hear(B, doubt(b=[]))
    assert in_doubt.outcome is None  # "member-b" can reach it still
    in_doubt.hear(B, doubt(b=[C]))
    assert in_doubt.outcome is Outcome.FAILED
    assert in_doubt.attempt.suspects == {C}
    assert in_doubt.attempt.last_word == doubt(a=[C], b=[C])


def test_the_last_one_left_gives_up(in_doubt: Member_) -> None:
    in_doubt.lose(B)
    assert in_doubt.outcome is Outcome.FAILED
    assert in_doubt.attempt.suspects == {B, C}


def test_all_give_up_when_all_are_in_doubt(in_doubt: Member_) -> None:
    """ "member-c" is out of our reach, but "member-b" has heard that it has not committed."""
    in_doubt.hear(B, doubt(b=[], c=[ME]))
    assert in_doubt.outcome is Outcome.FAILED
    assert in_doubt.attempt.suspects == set()


def test_a_doubt_is_passed_on_to_who_cannot_hear_it(voting: Member_) -> None:
    """ "member-b" and "member-c" cannot reach each other."""
    voting.hear(B, doubt(b=[C]))
    voting.said()
    voting.hear(C, doubt(c=[B]))
    assert doubt(a=[], b=[C], c=[B]) in voting.said()[B]


def test_a_member_that_comes_back_is_told_of_the_doubt(in_doubt: Member_) -> None:
    in_doubt.context.hear(C)
    in_doubt.attempt.back(C)
    assert in_doubt.said() == {C: [doubt(a=[C])]}


def test_a_member_that_was_frozen_after_its_vote_asks_before_it_commits(voting: Member_) -> None:
    voting.attempt.thaw(now=30.0)
    voting.hear(B, vote())
    voting.hear(C, vote())
    assert voting.outcome is None
    assert voting.said() == {B: [doubt(a=[])], C: [doubt(a=[])]}


def test_a_live_member_that_does_not_vote_in_time_is_doubted_and_suspected(voting: Member_) -> None:
    voting.hear(B, vote())
    assert voting.attempt.ends_at == 1.0 + 4 * POLICY.stall_timeout + 2 * 1.0
    voting.attempt.wake(voting.attempt.ends_at)
    assert voting.phase is Phase.UNCERTAIN
    voting.hear(C, ABORT)  # it was reducing still
    assert voting.outcome is Outcome.FAILED
    assert voting.attempt.suspects == {C}


def test_a_live_member_that_does_not_answer_a_doubt_is_waited_for_one_stall_timeout(in_doubt: Member_) -> None:
    assert in_doubt.attempt.ends_at == 2.0 + POLICY.stall_timeout
    in_doubt.attempt.wake(now=6.9)
    assert in_doubt.outcome is None
    in_doubt.attempt.wake(now=7.0)
    assert in_doubt.outcome is Outcome.FAILED
    assert in_doubt.attempt.suspects == {B, C}
