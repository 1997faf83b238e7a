"""How the peers that hold one state find each other to form a group: at whose place they meet. Pure, as everything here.

Every peer goes to the best leader it knows of, by ``groups.lead_order``; whoever is asked to lead does so, ready or not,
and tells all it knows. A peer that hears of two gatherings sends everybody to the better of the two, so gatherings merge
whatever each peer knew at first. A leader waits for those whom the peers that came to it know of, not only for its own
acquaintances: a newcomer that knows one peer cannot lead that one away from all others.

Once a group has begun, whoever is not in it and turns up is told so, and no second group from that state is formed
beside it. If the group fails, its members alone, less those that failed, meet again at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from prime_p2p.swarm import events as ev
from prime_p2p.swarm import messages as say
from prime_p2p.swarm.context import RoundContext
from prime_p2p.swarm.gathering import Gathering, Offer
from prime_p2p.swarm.groups import Group, Member, lead_order

State = tuple[int, bytes]
BEGUN = "a round began without this peer"


class Meeting:
    """The meeting of the peers at one state, as one of them sees it.

    ``members`` is None until a group has begun from the state; then nobody else may come. ``place`` is the peer where
    the group gathers as far as we know; our own join is there once we are ready. ``too_late`` says why there will be no
    round for us from this state, as soon as that is known.
    """

    def __init__(
        self, context: RoundContext, state: State, companions: Iterable[str] = (), begun: Group | None = None
    ) -> None:
        self.state = state
        self.members: Set[str] | None = None if begun is None else frozenset(begun.peer_ids)
        self.place: str | None = None
        self.offer: Member | None = None  # our own join, once we are ready
        self.too_late = "" if self.members is None or context.me in self.members else BEGUN
        self._context = context
        self._begun = begun
        self._here: dict[str, float | None] = dict.fromkeys(companions, 0.0)
        self._suspects: frozenset[str] = frozenset()
        self._gathering = Gathering(context.policy)
        self._told: set[str] = set()  # who knows that we lead
        self._answered: set[str] = set()  # who was heard of since we lead
        self._absent: set[str] = set()  # peers that hold another state, as they said themselves
        self._passed: set[str] = set()  # leaders that we have waited for long enough
        self._join_ends: float | None = None
        self.look()

    # ---- who is here

    @property
    def known(self) -> set[str]:
        """The peers that hold this state, or held it once."""
        return set(self._here)

    def look(self) -> None:
        """Take in a new view of the others. It may be old: that somebody has left this state is believed only of those
        who say so themselves, or who are seen further on."""
        for peer, seen in self._context.seen.items():
            if (seen.step, seen.digest) == self.state:
                awaited = seen.expected or self._here.get(peer) is not None
                self._here[peer] = seen.ready_at if awaited else None
            elif seen.step > self.state[0] and peer in self._here and peer not in self._context.lost:
                self.too_late = f"others are at outer step {seen.step} already"

    def _meets(self, peer: str) -> None:
        """A peer shows that it holds this state."""
        self._answered.add(peer)
        self._absent.discard(peer)
        self._gathering.detained.discard(peer)
        seen = self._context.seen.get(peer)
        self._here.setdefault(peer, 0.0 if seen is not None and seen.expected else None)

    def _away(self, peer: str) -> bool:
        excluded = self.members is not None and peer not in self.members
        return excluded or peer in self._context.lost or peer in self._absent or peer == self._context.me

    def _expected(self) -> dict[str, float]:
        """The others that a group from here waits for, with the time they should be ready at (0: unknown)."""
        return {peer: at for peer, at in self._here.items() if at is not None and not self._away(peer)}

    def _unsure(self) -> set[str]:
        """The others whose join a group from here does not wait for, but their answer: one may be in a group already,
        or have come to this state since it was seen at another."""
        asked = self._context.seen.keys() | self._here.keys()
        return {p for p in asked - self._answered if self._here.get(p) is None and not self._away(p)}

    def _best(self) -> str:
        candidates = {peer for peer in self._here if not self._away(peer)} - self._passed | {self._context.me}
        return lead_order(self._context.run, self.state[0], candidates)[0]

    def _better(self, one: str, other: str) -> bool:
        return lead_order(self._context.run, self.state[0], (one, other))[0] == one

    # ---- as a member

    def arrive(self, weight: int, bandwidth: float, suspects: Iterable[str], now: float) -> None:
        """We are ready. ``suspects`` failed us in this outer step."""
        self.offer = Member(self._context.me, next(self._context.nonces), weight, bandwidth)
        self._suspects = frozenset(suspects)
        if self.place is None:
            self._meet_at(self._best(), now)
        else:
            self._bring_offer(now)

    def _meet_at(self, place: str, now: float) -> None:
        """From now on the group gathers at this place: go there, and send there whoever came to us."""
        self.place = place
        if place != self._context.me:
            for peer in self.waiting:
                if peer != place:
                    self._redirect(peer, place)
        self._bring_offer(now)

    def _bring_offer(self, now: float) -> None:
        if self.offer is None:
            return
        if self.place == self._context.me:
            self._gathering.add(Offer(self.offer, self._suspects))
        else:
            self._join_ends = now + 2 * self._context.policy.longest_gathering
            self._send_join()

    def _send_join(self) -> None:
        assert self.offer is not None and self.place is not None
        step, digest = self.state
        join = say.Join(
            step=step,
            digest=digest,
            nonce=self.offer.nonce,
            weight=self.offer.weight,
            bandwidth=self.offer.bandwidth,
            suspects=sorted(self._suspects | self._context.lost)[: say.MAX_MEMBERS],
            awaited=sorted(self._expected())[: say.MAX_MEMBERS],
        )
        self._context.send(self.place, join)

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
        if before not in (None, self._context.me):
            assert before is not None
            self._redirect(before, leader)

    def _abandon_place(self, now: float) -> None:
        """Our leader is gone: meet at the next best."""
        self.leave()
        self.place = None
        if self.offer is not None:
            self._meet_at(self._best(), now)
        elif self._gathering.offers:
            self._meet_at(self._context.me, now)

    # ---- as the leader

    def lead(self, now: float) -> Group | None:
        """If the group gathers here: tell everyone, hurry the slow ones, and return the group when it is to begin."""
        gathering = self._gathering
        if self.place != self._context.me or not gathering.offers:
            gathering.opened_at = None
            return None
        if gathering.opened_at is None:
            gathering.opened_at = now
            gathering.hurried.clear()
            self._told.clear()
            self._answered = set(gathering.offers)
        missing = self._missing()
        unsure = self._unsure()
        hurry = gathering.to_hurry(missing, now)
        others = {peer for peer in self._here if not self._away(peer)} - gathering.offers.keys()
        for peer in sorted((others | unsure | missing.keys()) - self._told | set(hurry)):
            self._open(peer, hurry=peer in hurry or self._here.get(peer, 0.0) is None)
        if not gathering.closes(missing, unsure, now):
            return None
        step, digest = self.state
        return gathering.group(self._context.run, step, digest)

    def _missing(self) -> dict[str, float]:
        """Whom the group waits for. A leader waits for itself too."""
        expected = self._expected()
        if self.offer is None:
            expected[self._context.me] = 0.0
        missing = self._gathering.missing(expected)
        return {peer: at for peer, at in missing.items() if peer == self._context.me or not self._away(peer)}

    def _open(self, peer: str, hurry: bool) -> None:
        """Tell a peer that we lead. One that nobody waits for is told to hurry at once."""
        self._told.add(peer)
        if peer != self._context.me:
            step, digest = self.state
            self._context.send(peer, say.Open(step=step, digest=digest, hurry=hurry))
        elif hurry:
            self._context.act(ev.HurryUp())

    def _redirect(self, peer: str, leader: str) -> None:
        step, digest = self.state
        self._context.send(peer, say.Redirect(step=step, digest=digest, leader=leader))

    @property
    def waiting(self) -> list[str]:
        """The peers whose join is with us."""
        return [peer for peer in self._gathering.offers if peer != self._context.me]

    def announce(self, members: Set[str]) -> None:
        """A group began: tell all others who may wait for one."""
        for peer in sorted(self.known.union(self.waiting) - members):
            self.say_begun(peer, members)

    def say_begun(self, peer: str, members: Iterable[str]) -> None:
        step, digest = self.state
        self._context.send(peer, say.Begun(step=step, digest=digest, members=sorted(members)))

    # ---- what happens

    def receive(self, sender: str, message: say.AboutState, now: float) -> None:
        """Take a message about this state."""
        self._meets(sender)
        if isinstance(message, say.Begun):
            if self._context.me not in message.members:
                self.too_late = BEGUN
                if self.members is None:
                    self.members = frozenset(message.members)
        elif self.members is not None and sender not in self.members:
            self.say_begun(sender, self.members)
        elif isinstance(message, say.Join):
            self._on_join(sender, message, now)
        elif isinstance(message, say.Open):
            self._on_open(sender, message.hurry, now)
        else:
            self._on_redirect(sender, message.leader, now)

    def _on_join(self, sender: str, join: say.Join, now: float) -> None:
        place, me = self.place, self._context.me
        before = None if self._begun is None else self._begun.member(sender)
        if before is not None and join.nonce <= before.nonce:
            return  # this very offer was in the group that has begun
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
        if self.place == sender:
            if self.offer is not None:
                self._send_join()  # it may not have got ours
        elif self.place is None or self._better(sender, self.place):
            self._move(sender, now)
        if self.place != sender or self.offer is None:
            self._redirect(sender, self.place or sender)
        if hurry and self.place == sender and self.offer is None:
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

    def elsewhere(self, sender: str, step: int, now: float) -> None:
        """A peer that we spoke to holds another state."""
        if step > self.state[0]:
            self.too_late = f"others are at outer step {step} already"
        self._absent.add(sender)
        self._gathering.remove(sender)
        if self.place == sender:
            self._abandon_place(now)

    def lose(self, peer: str, now: float) -> None:
        """The link to a peer is gone."""
        self._gathering.remove(peer)
        self._told.discard(peer)
        if self.place == peer:
            self._abandon_place(now)

    def back(self) -> None:
        """A peer that was lost is heard of again: we can work with it."""
        if self._join_ends is not None:
            self._send_join()

    def wake(self, now: float) -> None:
        if self._join_ends is not None and now >= self._join_ends:
            assert self.place is not None
            self._passed.add(self.place)
            self._abandon_place(now)

    def wake_at(self, now: float) -> float | None:
        times = [self._join_ends, self._gathering.wake_at(now)]
        return min((time for time in times if time is not None), default=None)
