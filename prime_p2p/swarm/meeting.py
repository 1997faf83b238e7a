"""How the peers that hold one state find each other to form a group: at whose place they meet. Pure, no IO, no clock.

Every peer goes to the best leader it knows of, by ``groups.lead_order``. Whoever is asked to lead does so, ready or
not, and tells all it knows. A peer that hears of two gatherings sends everybody to the better of the two, so gatherings
merge whatever each peer knew at first. A leader waits for all that its visitors know of, not for its own acquaintances
only, and begins nothing before each of them has come, has answered, is lost, or has run out of time: a newcomer that
knows one peer does not lead that one away from all others.

Once a group has begun, its members tell so to whoever else turns up, and no second group from that state is formed
beside it. If the group fails, its members alone meet again, at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from prime_p2p.swarm import events as ev
from prime_p2p.swarm import messages as say
from prime_p2p.swarm.context import RoundContext
from prime_p2p.swarm.gathering import Gathering, Offer
from prime_p2p.swarm.groups import Group, Member, lead_order
from prime_p2p.swarm.roster import Roster, State

BEGUN = "a round began without this peer"


class Meeting:
    """The meeting of the peers at one state, as one of them sees it.

    ``begun`` is the group that has begun from this state already, if one has. ``place`` is the peer where the next one
    gathers as far as we know; ``offer``, our own join, is there once we are ready. ``too_late`` says why there will be
    no round for us from this state, as soon as that is known.
    """

    def __init__(
        self, context: RoundContext, state: State, companions: Iterable[str] = (), begun: Group | None = None
    ) -> None:
        self.state = state
        self.place: str | None = None
        self.offer: Member | None = None
        self.too_late = ""
        self._context = context
        self._begun = begun
        self._roster = Roster(context, state, companions, None if begun is None else frozenset(begun.peer_ids))
        self._suspects: frozenset[str] = frozenset()
        self._gathering = Gathering(context.policy)
        self._told: set[str] = set()  # who knows that we lead
        self._passed: set[str] = set()  # leaders that we have waited for long enough
        self._join_ends: float | None = None
        if begun is not None and begun.member(context.me) is None:
            self.too_late = BEGUN

    def look(self) -> None:
        """Take in a new view of the others."""
        self._roster.look()
        self._look_whether_overtaken()

    def _look_whether_overtaken(self) -> None:
        if self._roster.left:
            self.too_late = f"others are at outer step {self._roster.left} already"

    @property
    def known(self) -> set[str]:
        """The other peers that hold this state, or held it once."""
        return set(self._roster.known)

    def _better(self, one: str, other: str) -> bool:
        return lead_order(self._context.run, self.state[0], (one, other))[0] == one

    # ---- as a member

    def arrive(self, weight: int, bandwidth: float, suspects: Iterable[str], now: float) -> None:
        """We are ready. ``suspects`` failed us in this outer step."""
        self.offer = Member(self._context.me, next(self._context.nonces), weight, bandwidth)
        self._suspects = frozenset(suspects)
        self._meet_at(self.place or self._best(), now)

    def _best(self) -> str:
        candidates = self._roster.candidates() - self._passed | {self._context.me}
        return lead_order(self._context.run, self.state[0], candidates)[0]

    def _meet_at(self, place: str, now: float) -> None:
        """From now on the group gathers at this place: go there, and send there whoever came to us."""
        self.place = place
        if place != self._context.me:
            for peer in set(self.visitors) - {place}:
                self._redirect(peer, place)
        if self.offer is None:
            return
        if place == self._context.me:
            self._gathering.add(Offer(self.offer, self._suspects))
        else:
            self._join_ends = now + 2 * self._context.policy.longest_gathering
            self._send_join(self.offer, place)

    def _send_join(self, offer: Member, leader: str) -> None:
        step, digest = self.state
        unreachable = set() if self._context.settling else self._context.lost
        join = say.Join(
            step=step,
            digest=digest,
            nonce=offer.nonce,
            weight=offer.weight,
            bandwidth=offer.bandwidth,
            terms=self._context.terms,
            suspects=sorted(self._suspects | unreachable)[: say.MAX_MEMBERS],
            awaited=self._awaited(),
        )
        self._context.send(leader, join)

    def _awaited(self) -> list[str]:
        return sorted(self._roster.expected())[: say.MAX_MEMBERS]

    def leave(self) -> None:
        """Take our join back; what we offer next is another one."""
        self._join_ends = None
        if self.offer is None or self.place is None:
            return
        if self.place == self._context.me:
            self._gathering.remove(self._context.me)
        else:
            self._context.send(self.place, say.Withdraw(nonce=self.offer.nonce))
        self.offer = Member(self._context.me, next(self._context.nonces), self.offer.weight, self.offer.bandwidth)

    def _move(self, leader: str, now: float) -> None:
        """Meet at a better place."""
        before = self.place
        self.leave()
        self._meet_at(leader, now)
        if before is not None and before != self._context.me:
            self._redirect(before, leader)

    def _abandon_place(self, now: float) -> None:
        """Our leader is gone: meet at the next best."""
        self.leave()
        self.place = None
        if self.offer is not None:
            self._meet_at(self._best(), now)
        elif self.visitors:
            self._meet_at(self._context.me, now)

    # ---- as the leader

    @property
    def visitors(self) -> list[str]:
        """The other peers whose join is with us."""
        return [peer for peer in self._gathering.offers if peer != self._context.me]

    def lead(self, now: float) -> Group | None:
        """If the group gathers here: tell everyone, hurry the slow ones, and return the group when it is to begin."""
        gathering, me = self._gathering, self._context.me
        if self.place != me or not gathering.offers:
            gathering.opened_at = None
            return None
        if gathering.opened_at is None:
            gathering.open(now)
            self._told.clear()
            self._roster.ask()
        expected = self._roster.expected()
        if self.offer is None:
            expected[me] = 0.0  # a leader waits for itself too
        missing = {peer: ready_at for peer, ready_at in expected.items() if peer not in gathering.offers}
        unsure = self._roster.unsure() - gathering.offers.keys()
        self._tell(missing, unsure, now)
        awaited = missing.keys() | self._worth_waiting_for(unsure, now) | self._vouched_for(now)
        if (awaited and self._context.settling) or not gathering.closes(awaited, now):
            return None
        step, digest = self.state
        return gathering.group(self._context.run, step, digest)

    def _worth_waiting_for(self, unsure: set[str], now: float) -> set[str]:
        """Those that may answer: one that we know by nothing but its link does so at once, or holds everybody up."""
        assert self._gathering.opened_at is not None
        late = now >= self._gathering.opened_at + self._context.policy.detection
        return unsure & (self._context.seen.keys() | self.known) if late else unsure

    def _vouched_for(self, now: float) -> set[str]:
        """Those that we have lost and a visitor has not. Either it is about to lose them too, and then says so, or our
        link alone is broken, and there would be a group without them only because we lead it."""
        assert self._gathering.opened_at is not None
        if now >= self._gathering.opened_at + self._context.policy.detection:
            return set()
        offers = self._gathering.offers
        vouched: set[str] = set().union(*(offer.awaited for offer in offers.values())) & self._context.lost
        return self._roster.holders(vouched - offers.keys())

    def _tell(self, missing: dict[str, float], unsure: Set[str], now: float) -> None:
        """Say once to everyone that we lead, and once that the group closes soon. Nobody waits for a newcomer, so it is
        told to hurry at once."""
        step, digest = self.state
        there = self._roster.reachable(self.known | unsure) - self._gathering.offers.keys()
        within_reach = {peer: at for peer, at in missing.items() if peer in there or peer == self._context.me}
        hurry = set(self._gathering.to_hurry(within_reach, now))
        if self._context.me in hurry:
            self._context.act(ev.HurryUp())
        for peer in sorted(there - self._told | hurry - {self._context.me}):
            newcomer = peer not in missing and peer in self.known
            self._context.send(peer, say.Open(step=step, digest=digest, hurry=newcomer or peer in hurry))
        self._told |= there

    def _redirect(self, peer: str, leader: str) -> None:
        step, digest = self.state
        self._context.send(peer, say.Redirect(step=step, digest=digest, leader=leader, awaited=self._awaited()))

    def announce(self, members: Set[str]) -> None:
        """A group began: tell all others who may wait for one."""
        for peer in sorted(self.known.union(self.visitors) - members):
            self.say_begun(peer, members)

    def dismiss(self) -> None:
        """There is no group to be had here for those who came."""
        for peer in self.visitors:
            self.say_begun(peer, (self._roster.members or frozenset()) - {self._context.me})
            self._gathering.remove(peer)

    def give_up(self) -> None:
        """We take part in no group from here: nobody is to wait for us."""
        self.dismiss()
        me, members = self._context.me, self._roster.members or frozenset()
        companions = members if me in members else frozenset[str]()
        for peer in sorted(companions | {self.place or me}):
            self.say_begun(peer, members - {me})

    def decline(self) -> None:
        """We take part in no group from here for now: tell all who may wait for us."""
        for peer in sorted(self.known.union(self.visitors)):
            self._gathering.remove(peer)
            self.say_begun(peer, ())
        self.place = None

    def say_begun(self, peer: str, members: Iterable[str]) -> None:
        step, digest = self.state
        self._context.send(peer, say.Begun(step=step, digest=digest, members=sorted(members)))

    def refused(self, group: Group, now: float) -> None:
        """A group with us in it began too late: it fails, and its members meet again, each with a new offer."""
        members = frozenset(group.peer_ids)
        if self._roster.members is not None and not members <= self._roster.members:
            return
        self._begun = group
        self._roster.members = members
        for peer in set(self.visitors) - members:
            self._gathering.remove(peer)
            self.say_begun(peer, members)
        if self.place not in members:
            self._abandon_place(now)
        elif self.offer in group.members:
            self.leave()
            self._meet_at(self.place, now)

    # ---- what happens

    def receive(self, sender: str, message: say.AboutState, now: float) -> None:
        """Take a message about this state."""
        self._roster.meet(sender, message.awaited if isinstance(message, (say.Join, say.Redirect)) else ())
        self._gathering.detained.discard(sender)
        members = self._roster.members
        if isinstance(message, say.Begun):
            self._on_begun(sender, frozenset(message.members), now)
        elif members is not None and sender not in members:
            self.say_begun(sender, members)
        elif isinstance(message, say.Join):
            self._on_join(sender, message, now)
        elif isinstance(message, say.Open):
            self._on_open(sender, message.hurry, now)
        elif members is None or message.leader in members:
            self._on_redirect(sender, message.leader, now)

    def _on_begun(self, sender: str, members: frozenset[str], now: float) -> None:
        """A member says that its group has begun. From others it only says that there is no group to be had with
        them: the one they know of may be out of our reach."""
        if sender not in members:
            self._drop(sender, now)
        elif self._context.me not in members:
            self.too_late = BEGUN
            if self._roster.members is None:
                self._roster.members = members

    def _drop(self, peer: str, now: float) -> None:
        self._roster.dismiss(peer)
        self._gathering.remove(peer)
        if self.place == peer:
            self._abandon_place(now)

    def _on_join(self, sender: str, join: say.Join, now: float) -> None:
        place, me = self.place, self._context.me
        used = None if self._begun is None else self._begun.member(sender)
        if used is not None and join.nonce <= used.nonce:
            return  # this very offer was in the group that has begun
        if join.terms != self._context.terms:
            self.say_begun(sender, ())
            self._drop(sender, now)
            return
        if place not in (None, me) and place not in join.suspects and self._better(place, me):
            self._redirect(sender, place)
            return
        member = Member(sender, join.nonce, join.weight, join.bandwidth)
        self._gathering.add(Offer(member, frozenset(join.suspects), frozenset(join.awaited)))
        if place is None:
            self.place = me
        elif place != me and self._better(me, place):
            self._move(me, now)

    def _on_open(self, sender: str, hurry: bool, now: float) -> None:
        if self.place == sender and self.offer is not None:
            self._send_join(self.offer, sender)  # it may not have got ours
            return
        if self.place is None or self._better(sender, self.place):
            self._move(sender, now)
        if self.place != sender or self.offer is None:
            self._redirect(sender, self.place or sender)
        if self.place == sender and self.offer is None and hurry:
            self._context.act(ev.HurryUp())

    def _on_redirect(self, sender: str, leader: str, now: float) -> None:
        if leader in (self._context.me, self.place):
            return
        if leader in self._context.lost:
            self._gathering.detained.add(sender)
        elif self.place is None or self._better(leader, self.place):
            self._move(leader, now)
        else:
            self._redirect(sender, self.place)

    def withdraw(self, sender: str, nonce: int) -> None:
        """A peer takes its join back."""
        offer = self._gathering.offers.get(sender)
        if offer is not None and offer.member.nonce == nonce:
            self._gathering.remove(sender)

    def elsewhere(self, sender: str, message: say.Elsewhere, now: float) -> None:
        """A peer that we spoke to holds another state."""
        self._roster.elsewhere(sender, message.step, message.digest, message.tokens)
        self._look_whether_overtaken()
        self._drop(sender, now)

    def lose(self, peer: str, now: float) -> None:
        """The link to a peer is gone."""
        self._gathering.remove(peer)
        self._told.discard(peer)
        if self.place == peer:
            self._abandon_place(now)
        elif self.offer is not None and self.place not in (None, self._context.me) and peer in self._roster.known:
            assert self.place is not None
            if not self._context.settling:
                self._send_join(self.offer, self.place)  # our leader waits for the peer as long as we expect it

    def wake(self, now: float) -> None:
        """Take the steps that are due."""
        if self._join_ends is not None and self.place is not None and now >= self._join_ends:
            self._passed.add(self.place)
            self._abandon_place(now)

    def wake_at(self, now: float) -> float | None:
        times = [self._join_ends, self._gathering.wake_at(now)]
        return min((time for time in times if time is not None), default=None)
