"""How one group reduces and commits: all of it or nothing, whoever fails. Pure: no IO, no clock of its own.

* A member votes when its reduce is complete, and commits when it has the same vote from every member. So as long as one
  member has not voted nobody can have committed, and a member that has not voted may abort the group for all.
* A member that has voted and misses a vote cannot know whether others got it. It falls into doubt: it counts votes no
  more, tells everyone so, and a member that hears of it and has no full count either falls into doubt too. Who has
  committed answers so, and whoever hears that while in doubt commits too and passes it on.
* ``Committed`` carries what its sender committed by: the signed votes of all members. A false one never gets here.
* In doubt, members tell each other whom they have lost. When every member is in doubt or lost to all who are, nobody
  they can reach has committed and nobody among them will: they give the group up.

Hence members that can reach each other, directly or through others in doubt, all commit or all give up. Only a member
that committed and was cut off from all of them before it said so differs; it is a fork, which heals like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum

from prime_p2p.swarm import events as ev
from prime_p2p.swarm import messages as say
from prime_p2p.swarm.certificate import Certificate
from prime_p2p.swarm.context import RoundContext
from prime_p2p.swarm.events import Phase
from prime_p2p.swarm.groups import Group

VOTE_STALLS = 4
"""A live member may vote this many stall timeouts, and twice the time of our own reduce, later than we do."""


class Outcome(Enum):
    COMMITTED = "committed"
    FAILED = "failed"


class Attempt:
    """One group that this peer is in, from its begin until it is committed or given up.

    ``suspects`` are the members to leave out of the next group if this one fails, ``blamed`` those that our reduce
    found at fault: no proof, since a member that stops because of another looks like one that failed until it says so.
    """

    def __init__(self, context: RoundContext, group: Group, now: float) -> None:
        self.group = group
        self.phase = Phase.REDUCING
        self.outcome: Outcome | None = None
        self.last_word: say.AboutGroup | None = None
        self.suspects: set[str] = set()
        self.blamed: frozenset[str] = frozenset()
        self.ends_at: float | None = None
        self._context = context
        self._others = frozenset(group.peer_ids) - {context.me}
        self._begun_at = now
        self._votes: dict[str, tuple[bytes, bytes]] = {}  # update digest and signature
        self._lost: dict[str, set[str]] = {}  # members in doubt, each with those it has lost
        context.act(ev.StartReduce(group))
        if self._others & context.lost:
            self._abort()

    @property
    def certificate(self) -> Certificate:
        """The signed votes of all members, once it is committed."""
        said = self.last_word
        assert isinstance(said, say.Committed)
        return Certificate(self.group, said.update_digest, tuple(said.signatures))

    # ---- what happens

    def reduced(self, update_digest: bytes, signature: bytes, now: float) -> None:
        """Our reduce is complete: vote."""
        if self.phase is not Phase.REDUCING:
            return
        self.phase = Phase.VOTING
        self.ends_at = now + VOTE_STALLS * self._context.policy.stall_timeout + 2 * (now - self._begun_at)
        self._votes[self._context.me] = update_digest, signature
        self._tell(say.Vote(group_id=self.group.id, update_digest=update_digest, signature=signature))
        self._count()

    def reduce_failed(self, blamed: frozenset[str]) -> None:
        """Our reduce cannot be completed."""
        if self.phase is Phase.REDUCING:
            self.blamed = blamed - {self._context.me}
            self._abort()

    def receive(self, sender: str, message: say.AboutGroup, now: float) -> None:
        """Take a message about this group."""
        if sender not in self._others:
            return
        if isinstance(message, say.Vote):
            self._votes[sender] = message.update_digest, message.signature
            self._count()
        elif isinstance(message, say.Abort):
            if self.phase is Phase.REDUCING:
                self._abort()  # our streams end now, and nobody is to think that we failed
            else:
                self._fail(message)
        elif isinstance(message, say.Committed):
            if self.phase is not Phase.REDUCING:
                self._commit(message)
        elif self.phase is Phase.REDUCING:
            self._abort()
        else:
            self._learn({peer: set(lost) for peer, lost in message.lost.items()}, now)

    def lose(self, peer_id: str, now: float) -> None:
        """The link to a peer is gone. A member that has voted is not missed."""
        if peer_id not in self._others:
            return
        if self.phase is Phase.UNCERTAIN:
            self._learn({}, now)
        elif peer_id not in self._votes:
            if self.phase is Phase.REDUCING:
                self._abort()
            else:
                self._learn({}, now)

    def back(self, peer_id: str) -> None:
        """A peer that was lost is heard again: it may not know of our doubt."""
        if self.phase is Phase.UNCERTAIN and peer_id in self._others:
            self._context.send(peer_id, self._doubt())

    def thaw(self, now: float) -> None:
        """We were frozen, and lost to the others: what they said before may hold no more."""
        if self.phase is Phase.REDUCING:
            self._abort()
        elif self.phase is Phase.VOTING:
            self._learn({}, now)

    def wake(self, now: float) -> None:
        if self.ends_at is None or now < self.ends_at:
            return
        if self.phase is Phase.VOTING:
            self.suspects |= self._others - set(self._votes)  # alive, but slower than anybody can wait for
            self._learn({}, now)
        else:
            self._settle()

    # ---- how it ends

    def _count(self) -> None:
        if self.phase is not Phase.VOTING or not self._others <= set(self._votes):
            return
        certificate = Certificate.of(self.group, self._votes)
        if certificate is not None:
            self._commit(certificate.told)
            return
        counts = Counter(digest for digest, _ in self._votes.values())
        agreed = max(counts, key=lambda digest: (counts[digest], digest))
        self.suspects |= {peer for peer in self._others if self._votes[peer][0] != agreed}
        self._abort()

    def _commit(self, said: say.Committed) -> None:
        if self.phase is Phase.UNCERTAIN:
            self._tell(said)
        self.outcome = Outcome.COMMITTED
        self.last_word = said

    def _abort(self) -> None:
        said = say.Abort(group_id=self.group.id, blamed=sorted(self.blamed)[: say.MAX_MEMBERS])
        self._tell(said)
        self._fail(said)

    def _fail(self, last_word: say.AboutGroup) -> None:
        self.outcome = Outcome.FAILED
        self.last_word = last_word
        self._context.act(ev.StopReduce(self.group.id))

    # ---- doubt

    def _learn(self, lost: dict[str, set[str]], now: float) -> None:
        """Be in doubt, and take in what another member in doubt knows."""
        me = self._context.me
        if self.phase is Phase.VOTING:
            self.phase = Phase.UNCERTAIN
            self.ends_at = now + self._context.policy.stall_timeout
            self._lost[me] = set()
            news = {me}
        else:
            news = set()
        lost = {**lost, me: set(self._context.lost)}
        for peer in lost.keys() & set(self.group.peer_ids):
            found = lost[peer] & self._others
            if peer not in self._lost or not found <= self._lost[peer]:
                self._lost.setdefault(peer, set()).update(found)
                news.add(peer)
        if me in news or self._not_heard_by_all(news):
            self._tell(self._doubt())
        if self._silent() <= set.intersection(*self._lost.values()):
            self._settle()

    def _not_heard_by_all(self, peers: Iterable[str]) -> bool:
        return any(peer in lost for peer in peers for lost in self._lost.values())

    def _doubt(self) -> say.Doubt:
        return say.Doubt(group_id=self.group.id, lost={peer: sorted(lost) for peer, lost in self._lost.items()})

    def _silent(self) -> set[str]:
        return set(self.group.peer_ids) - set(self._lost)

    def _settle(self) -> None:
        self.suspects |= self._silent()
        self._fail(self._doubt())

    def _tell(self, message: say.AboutGroup) -> None:
        for peer in self.group.peer_ids:
            self._context.send(peer, message)
