"""What the leader of an outer step keeps while it gathers the group. Pure: no IO, no clock of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from prime_p2p.swarm.groups import Group, Member, lead_order, without_conflicts


@dataclass(frozen=True)
class RoundPolicy:
    """How long a round waits, in seconds, and how large a group may be.

    ``patience`` runs from the first join; then those still missing are told to hurry, and ``grace`` later the group
    closes. ``stall_timeout`` is how long a peer may show no sign of life or progress.
    """

    patience: float = 10.0
    grace: float = 5.0
    stall_timeout: float = 5.0
    max_group: int = 32

    @property
    def detection(self) -> float:
        """How long it takes at most until all have lost a peer that went silent: there are four pings in a stall."""
        return 1.25 * self.stall_timeout

    @property
    def tick(self) -> float:
        """How often a round looks at the clock, so that it finds out when it was frozen."""
        return self.stall_timeout / 4

    @property
    def longest_gathering(self) -> float:
        """How long a join can stay without an answer at a leader that lives and can reach everybody."""
        return self.patience + self.grace + self.stall_timeout


@dataclass(frozen=True)
class Seen:
    """What is known of another peer: its state, and when (on the caller's clock) it should be done training.

    ``tokens`` were contributed to its lineage. ``expected`` is False for a peer that joined a run under way and has not
    taken part yet: nobody waits for it.
    """

    peer_id: str
    step: int
    digest: bytes
    expected: bool = True
    ready_at: float = 0.0
    tokens: int = 0


@dataclass(frozen=True)
class Offer:
    """A join as its leader keeps it, see ``messages.Join``."""

    member: Member
    suspects: frozenset[str] = frozenset()
    awaited: frozenset[str] = frozenset()


@dataclass
class Gathering:
    """The joins to one outer step.

    ``opened_at`` is when this peer began to lead; None while it only keeps the joins of peers that cannot reach the
    leader. ``detained`` are the peers that wait with a leader that this peer cannot reach: until that is decided there,
    a group that closed here could be a second one.
    """

    policy: RoundPolicy
    offers: dict[str, Offer] = field(default_factory=dict)
    opened_at: float | None = None
    hurried: set[str] = field(default_factory=set)
    detained: set[str] = field(default_factory=set)

    def open(self, now: float) -> None:
        self.opened_at = now
        self.hurried.clear()

    def add(self, offer: Offer) -> None:
        self.offers[offer.member.peer_id] = offer
        self.detained.discard(offer.member.peer_id)

    def remove(self, peer_id: str) -> None:
        self.offers.pop(peer_id, None)
        self.detained.discard(peer_id)

    def to_hurry(self, missing: Mapping[str, float], now: float) -> list[str]:
        """Who must be told, now, to join with the inner steps it has: each is told once.

        A peer that will not be ready before patience ends is told at once: to wait for it first helps nobody.
        """
        slow = [
            peer
            for peer, ready_at in missing.items()
            if peer not in self.hurried and (now >= self.patience_ends or ready_at > self.patience_ends)
        ]
        self.hurried.update(slow)
        return slow

    def closes(self, awaited: Collection[str], now: float) -> bool:
        """Whether the group is to begin: nobody is awaited any more, or the last grace is over."""
        if not self.offers or self.opened_at is None:
            return False
        return now >= self.closes_at or not (awaited or self.detained)

    @property
    def patience_ends(self) -> float:
        assert self.opened_at is not None
        return self.opened_at + self.policy.patience

    @property
    def closes_at(self) -> float:
        return self.patience_ends + self.policy.grace + (self.policy.longest_gathering if self.detained else 0.0)

    def wake_at(self, now: float) -> float | None:
        """When to look again, if time alone may change anything."""
        if not self.offers or self.opened_at is None:
            return None
        return next((time for time in (self.patience_ends, self.closes_at) if time > now), None)

    def group(self, run: str, step: int, digest: bytes) -> Group:
        """The group of the peers who are here and can work with each other, ``max_group`` of them at most."""
        fit = without_conflicts({peer: offer.suspects for peer, offer in self.offers.items()})
        chosen = lead_order(run, step, fit)[: self.policy.max_group]
        return Group(run, step, digest, tuple(self.offers[peer].member for peer in chosen))
