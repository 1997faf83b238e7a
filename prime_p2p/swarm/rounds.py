"""The round as a pure state machine: it is told events and the time, and says what to do.

No IO and no clock of its own, so the same code runs over a network (``swarm.runner``) and over a simulated one. One
``RoundMachine`` serves a peer for its whole life: between rounds it still leads for others and answers late messages.

Peers that hold the same state find each other (``swarm.meeting``) and begin a group, which reduces and commits
(``swarm.commit``). If it fails, its members meet again without those that failed, from the bytes still in memory,
until a group commits or somebody is told that there is no round for it from this state.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict

from prime_p2p.network.frames import Message
from prime_p2p.swarm import events as ev
from prime_p2p.swarm import messages as say
from prime_p2p.swarm.commit import Attempt, Outcome
from prime_p2p.swarm.context import RoundContext
from prime_p2p.swarm.events import Phase
from prime_p2p.swarm.gathering import RoundPolicy
from prime_p2p.swarm.groups import Group, Member
from prime_p2p.swarm.meeting import Meeting
from prime_p2p.swarm.roster import State

REMEMBERED = 64  # groups that are over, each with what we say to whoever still asks
MOST_ATTEMPTS = 8  # groups begun for one outer step before a peer trains on


class RoundMachine:
    """The round, as one peer sees it. ``first_nonce`` must grow from one start of the peer to the next."""

    def __init__(self, run: str, me: str, policy: RoundPolicy, first_nonce: int = 0) -> None:
        self.me = me
        self.state: State = (0, bytes(32))
        self.attempt: Attempt | None = None
        self.attempts = 0
        self._context = RoundContext(run, me, policy, itertools.count(first_nonce))
        self._phase = Phase.TRAINING  # while there is no attempt
        self._meeting = Meeting(self._context, self.state)
        self._ready: ev.Ready | None = None
        self._sits_out = False
        self._suspects: set[str] = set()  # not to be in a group with, for this outer step
        self._blamed: dict[str, bytes] = {}  # whom a reduce of ours has blamed once, and in which group
        self._given_up: dict[bytes, Group] = {}  # the groups from this state that have ended
        self._contributed = False  # one of them did not fail for all of its members
        self._committed: Group | None = None  # the group whose update is being applied
        self._last_words: OrderedDict[bytes, say.AboutGroup] = OrderedDict()  # of groups that we were in
        self._refused: OrderedDict[bytes, say.Abort] = OrderedDict()  # those that we were not to be in
        self._last = math.inf  # when we were last awake
        self._settled_at = -math.inf  # when our links are back after we were frozen or cut off
        self._lost_all = False  # and have heard of nobody since
        self._early: dict[tuple[str, str], say.AboutState] = {}  # about the state after ours, by sender and kind

    # ---- the two calls of whoever runs the machine

    def handle(self, event: ev.Event, now: float) -> list[ev.Action]:
        """Take one event at time ``now`` (seconds on the caller's steady clock) and return what to do, in order."""
        if now - self._last > 3 * self._context.policy.tick:
            self._thaw(now)
        self._context.settling = now < self._settled_at
        self._last = now
        if isinstance(event, ev.Received):
            self._hear(event.sender, now)
            self._receive(event.sender, event.message, now)
        elif isinstance(event, ev.PeerLost):
            self._lose(event.peer_id, now)
        elif isinstance(event, ev.CutOff):
            self._thaw(now)
            self._context.settling = True
        elif isinstance(event, ev.PeersSeen):
            self._context.see(event.peers)
            self._meeting.look()
        elif isinstance(event, ev.Ready):
            self._become_ready(event, now)
        elif isinstance(event, ev.SitsOut):
            self._sit_out()
        elif isinstance(event, ev.StateChanged):
            self._context.terms = event.terms
            self._change_state((event.step, event.digest), event.tokens, now)
        elif isinstance(event, (ev.ReduceDone, ev.ReduceFailed)):
            self._end_reduce(event, now)
        self._advance(now)
        return self._context.take_actions()

    def wake_at(self, now: float) -> float:
        """When ``Woken`` is due. Valid until the next event."""
        ends_at = self._meeting.wake_at(now) if self.attempt is None else self.attempt.ends_at
        tick = now + self._context.policy.tick
        return tick if ends_at is None else min(ends_at, tick)

    def group_of(self, group_id: bytes) -> Group | None:
        """The group of this id, if it is one that we are in or were in from this state."""
        attempt = self.attempt
        return attempt.group if attempt and attempt.group.id == group_id else self._given_up.get(group_id)

    @property
    def phase(self) -> Phase:
        return self._phase if self.attempt is None else self.attempt.phase

    def _end_reduce(self, event: ev.ReduceDone | ev.ReduceFailed, now: float) -> None:
        if self.attempt is None or self.attempt.group.id != event.group_id:
            return
        if isinstance(event, ev.ReduceDone):
            self.attempt.reduced(event.update_digest, event.signature, now)
        else:
            self.attempt.reduce_failed(event.blamed)

    def _thaw(self, now: float) -> None:
        """We were frozen or are cut off for so long that the others have lost us, or are about to."""
        self._settled_at = now + self._context.policy.stall_timeout
        if self.attempt is not None and len(self.attempt.group.members) > 1:
            self.attempt.thaw(now)
            self._advance(now)

    # ---- from phase to phase

    def _advance(self, now: float) -> None:
        while self._step(now):
            pass

    def _step(self, now: float) -> bool:
        """Take one step that is due; False where none is."""
        if self.attempt is not None:
            self.attempt.wake(now)
            if self.attempt.outcome is Outcome.COMMITTED:
                self._commit(self.attempt)
            elif self.attempt.outcome is Outcome.FAILED:
                self._meet_again(self.attempt, now)
            return self.attempt is None
        if self._phase is Phase.APPLYING:
            return False
        self._meeting.wake(now)
        if self._meeting.too_late:
            self._meeting.dismiss()
            if self._phase is Phase.GATHERING:
                self._miss(self._meeting.too_late, now)
            return False
        group = self._meeting.lead(now)
        if group is not None:
            self._close(group, now)
        return group is not None

    def _become_ready(self, ready: ev.Ready, now: float) -> None:
        self._suspects.clear()
        self._blamed.clear()
        self.attempts = 0
        self._sits_out = False
        self._ready = ready
        self._context.terms = ready.terms
        self._phase = Phase.GATHERING
        if not self._meeting.too_late:
            self._meeting.arrive(ready.weight, ready.bandwidth, (), now)

    def _sit_out(self) -> None:
        """Those who came here go elsewhere, and those who may wait for us are told not to."""
        if self._phase is Phase.TRAINING and self.attempt is None:
            self._sits_out = True
            self._meeting.decline()

    def _close(self, group: Group, now: float) -> None:
        """We lead, and everyone who is to be in the group is here."""
        if group.total_weight == 0:
            self._meeting.too_late = "nobody in the group has trained"
            return
        members = [
            say.GroupMember(peer_id=m.peer_id, nonce=m.nonce, weight=m.weight, bandwidth=m.bandwidth)
            for m in group.members
        ]
        for peer in group.peer_ids:
            self._context.send(peer, say.Begin(step=group.step, digest=group.digest, members=members))
        self._begin(group, now)

    def _begin(self, group: Group, now: float) -> None:
        """The group begins. Whoever is not in it hears so, and if it fails, its members meet again."""
        members = frozenset(group.peer_ids)
        self._meeting.announce(members)
        self._meeting = Meeting(self._context, self.state, self._meeting.known | members, group)
        if self.me in members:
            self.attempts += 1
            self.attempt = Attempt(self._context, group, now)

    def _commit(self, attempt: Attempt) -> None:
        self._end(attempt)
        self._committed = attempt.group
        self._phase = Phase.APPLYING
        for peer in self._meeting.visitors:
            self._say_committed(peer)
        self._context.act(ev.Commit(attempt.group, self.attempts, attempt.certificate))

    def _meet_again(self, attempt: Attempt, now: float) -> None:
        self._end(attempt)
        self._suspects |= attempt.suspects | (attempt.blamed & self._blamed.keys())
        self._blamed.update(dict.fromkeys(attempt.blamed, attempt.group.id))
        self._phase = Phase.GATHERING
        assert self._ready is not None
        if self.attempts >= MOST_ATTEMPTS:
            self._meeting.too_late = f"{self.attempts} groups failed"
        elif not self._meeting.too_late:
            self._meeting.arrive(self._ready.weight, self._ready.bandwidth, self._suspects, now)

    def _end(self, attempt: Attempt) -> None:
        assert attempt.last_word is not None
        self._remember(attempt.group.id, attempt.last_word)
        self._given_up[attempt.group.id] = attempt.group
        self.attempt = None

    def _miss(self, reason: str, now: float) -> None:
        self._meeting.give_up()
        early, self._early = self._early, {}
        for (sender, _), message in early.items():
            self._on_gathering(sender, message, now)
        self._meeting = Meeting(self._context, self.state)
        self._ready = None
        self._phase = Phase.TRAINING
        self._context.act(ev.Missed(reason, self._contributed))

    def _change_state(self, state: State, tokens: int, now: float) -> None:
        self._context.tokens = tokens
        if state == self.state:
            return
        visitors = self._meeting.visitors
        companions = () if self._committed is None else self._committed.peer_ids
        if self.attempt is not None:
            self._context.act(ev.StopReduce(self.attempt.group.id))
            self.attempt = None
        self._given_up.clear()
        self._contributed = False
        self._committed = None
        self._ready = None
        self._sits_out = False
        self._phase = Phase.TRAINING
        self.state = state
        for peer in visitors:
            self._say_elsewhere(peer)
        self._meeting = Meeting(self._context, state, companions)
        early, self._early = self._early, {}
        for (sender, _), message in early.items():
            self._receive(sender, message, now)

    # ---- peers and messages

    def _hear(self, peer: str, now: float) -> None:
        if self._lost_all:  # it was our own links that broke: the others will be back as this peer is
            self._lost_all = False
            self._settled_at = now + self._context.policy.stall_timeout
            self._context.settling = True
        if self._context.hear(peer) and self.attempt is not None:
            self.attempt.back(peer)

    def _lose(self, peer: str, now: float) -> None:
        self._context.lose(peer)
        known = self._context.seen.keys() | self._context.heard | self._meeting.known
        self._lost_all = known <= self._context.lost
        for sender, kind in list(self._early):
            if sender == peer:
                del self._early[sender, kind]
        self._meeting.lose(peer, now)
        if self.attempt is not None:
            self.attempt.lose(peer, now)

    def _receive(self, sender: str, message: Message, now: float) -> None:
        if isinstance(message, (say.Join, say.Open, say.Redirect, say.Begun)):
            self._on_gathering(sender, message, now)
        elif isinstance(message, say.Withdraw):
            self._on_withdraw(sender, message)
        elif isinstance(message, say.Elsewhere):
            if (message.step, message.digest) != self.state:
                self._meeting.elsewhere(sender, message, now)
        elif isinstance(message, say.Begin):
            self._on_begin(sender, message, now)
        elif isinstance(message, (say.Vote, say.Abort, say.Doubt, say.Committed)):
            self._on_group(sender, message, now)
        elif isinstance(message, say.Leave):
            self._lose(sender, now)

    def _on_gathering(self, sender: str, message: say.AboutState, now: float) -> None:
        if message.step == self.state[0] + 1 and (self.attempt is not None or self._phase is Phase.APPLYING):
            self._early.pop((sender, message.kind), None)
            self._early[sender, message.kind] = message
        elif (message.step, message.digest) != self.state:
            if isinstance(message, (say.Join, say.Open)):
                self._say_elsewhere(sender)
        elif self._phase is Phase.APPLYING:
            self._say_committed(sender)
        elif self._sits_out and not isinstance(message, say.Begun):
            self._meeting.say_begun(sender, ())
        else:
            self._meeting.receive(sender, message, now)

    def _on_withdraw(self, sender: str, message: say.Withdraw) -> None:
        self._meeting.withdraw(sender, message.nonce)
        early = self._early.get((sender, say.Join.kind))
        if isinstance(early, say.Join) and early.nonce == message.nonce:
            del self._early[sender, say.Join.kind]

    def _say_elsewhere(self, peer: str) -> None:
        step, digest = self.state
        self._context.send(peer, say.Elsewhere(step=step, digest=digest, tokens=self._context.tokens))

    def _say_committed(self, peer: str) -> None:
        """The peer wants a round from the state that we leave just now."""
        assert self._committed is not None
        if peer in self._committed.peer_ids:
            self._context.send(peer, self._last_words[self._committed.id])
        else:
            self._meeting.say_begun(peer, frozenset(self._committed.peer_ids))

    def _on_begin(self, sender: str, message: say.Begin, now: float) -> None:
        members = tuple(Member(m.peer_id, m.nonce, m.weight, m.bandwidth) for m in message.members)
        group = Group(self._context.run, message.step, message.digest, members)
        mine = group.member(self.me)
        if mine is None or len(set(group.peer_ids)) < len(members):
            return
        gathers = self._phase is Phase.GATHERING and self.attempt is None and (group.step, group.digest) == self.state
        wanted = gathers and sender == self._meeting.place and mine == self._meeting.offer and group.total_weight > 0
        if wanted and self._said_of(group.id) is None:
            self._begin(group, now)
            return
        refusal = say.Abort(group_id=group.id, blamed=[])
        self._refuse(group.id, refusal)
        known = self._context.seen.keys() | self._context.heard | self._meeting.known
        for peer in group.peer_ids:
            if peer in known:  # whoever else it names, it is not for us to seek them out
                self._context.send(peer, refusal)
        if gathers:
            self._meeting.refused(group, now)

    def _on_group(self, sender: str, message: say.AboutGroup, now: float) -> None:
        stopped = isinstance(message, say.Abort) and self.me not in message.blamed
        if stopped and self._blamed.get(sender) == message.group_id:
            del self._blamed[sender]  # its streams ended because it stopped, and not because of us
        if self.attempt is not None and self.attempt.group.id == message.group_id:
            self.attempt.receive(sender, message, now)
        elif isinstance(message, say.Doubt) and (said := self._said_of(message.group_id)) is not None:
            if self.me not in message.lost:
                self._context.send(sender, said)
        elif isinstance(message, say.Abort) and self._said_of(message.group_id) is None:
            self._refuse(message.group_id, message)  # its begin may still be on the way
        elif isinstance(message, say.Committed) and message.group_id in self._given_up:
            self._meeting.too_late = "others committed a group that this peer gave up"
            self._contributed = True

    def _said_of(self, group_id: bytes) -> say.AboutGroup | None:
        return self._last_words.get(group_id) or self._refused.get(group_id)

    def _remember(self, group_id: bytes, last_word: say.AboutGroup) -> None:
        self._last_words[group_id] = last_word
        while len(self._last_words) > REMEMBERED:
            self._last_words.popitem(last=False)

    def _refuse(self, group_id: bytes, refusal: say.Abort) -> None:
        """Never begin this group. Anybody can have us refuse any number: they do not displace the groups we were in."""
        self._refused[group_id] = refusal
        while len(self._refused) > REMEMBERED:
            self._refused.popitem(last=False)
