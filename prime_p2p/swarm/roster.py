"""Who holds a state, as far as one peer knows: from views that may be old, and from what the others say themselves."""

from __future__ import annotations

from collections.abc import Iterable, Set

from prime_p2p.swarm.context import RoundContext
from prime_p2p.swarm.groups import rank

State = tuple[int, bytes]
MOST_BY_HEARSAY = 256  # peers at a state from which on none is added of whom we have nothing but another one's word


class Roster:
    """The peers at one state.

    ``companions`` came to the state together with us, whatever older news say of them. ``members`` is None until a
    group has begun from the state: then only its members count.
    """

    def __init__(
        self, context: RoundContext, state: State, companions: Iterable[str], members: Set[str] | None
    ) -> None:
        self.state = state
        self.members = members
        self.left = 0  # the outer step of a better state that one of the peers was seen to have gone on to, or 0
        self._context = context
        self._companions = frozenset(companions)
        self._here: dict[str, float | None] = dict.fromkeys(companions, 0.0)  # see ``expected``; None: not awaited
        self._elsewhere: set[str] = set()  # those who said that they hold another state, or need no group
        self._answered: set[str] = set()  # those who spoke since ``ask``
        self.look()

    # ---- what we learn

    def look(self) -> None:
        """Take in the present view. Only of those who are seen at a better state we believe that they have left ours: a
        state of less rank is an older one of our lineage, or of one that its peers are about to give up for ours."""
        for peer, seen in self._context.seen.items():
            if (seen.step, seen.digest) == self.state:
                awaited = seen.expected or peer in self._companions
                self._here[peer] = seen.ready_at if awaited else None
            elif peer in self._here and peer not in self._context.lost and self._beats_ours(seen.tokens, seen.digest):
                self.left = seen.step

    def meet(self, peer: str, others: Iterable[str] = ()) -> None:
        """A peer showed that it holds the state, and named others that do."""
        self._answered.add(peer)
        self._elsewhere.discard(peer)
        for one in (peer, *others):
            seen = self._context.seen.get(one)
            if one == peer or seen is not None or len(self._here) < MOST_BY_HEARSAY:
                self._here.setdefault(one, 0.0 if seen is None or seen.expected else None)

    def elsewhere(self, peer: str, step: int, digest: bytes, tokens: int) -> None:
        """A peer said that it holds another state."""
        if self._beats_ours(tokens, digest):
            self.left = step
        self.dismiss(peer)

    def _beats_ours(self, tokens: int, digest: bytes) -> bool:
        return rank(tokens, digest) > rank(self._context.tokens, self.state[1])

    def dismiss(self, peer: str) -> None:
        """A peer holds another state, or is in a group already."""
        self._elsewhere.add(peer)

    def ask(self) -> None:
        """We begin to lead, and ask everyone: from now on, answers count. Who wanted no group when nobody gathered may
        want one now; but not with a group that has begun."""
        self._answered.clear()
        if self.members is None:
            self._elsewhere.clear()

    # ---- what follows

    @property
    def known(self) -> Set[str]:
        """All that hold the state, or held it once."""
        return self._here.keys()

    def holders(self, peers: Iterable[str]) -> set[str]:
        """Those of these peers that may hold the state, as far as we know, and need a group."""
        return {peer for peer in peers if not self._is_out(peer)}

    def reachable(self, peers: Iterable[str]) -> set[str]:
        """Those of them that a message would reach."""
        return self.holders(peers) - self._context.lost

    def candidates(self) -> set[str]:
        """The others that should lead a group from here: not a newcomer, which would have everybody wait for it."""
        return self.reachable(peer for peer, ready_at in self._here.items() if ready_at is not None)

    def expected(self) -> dict[str, float]:
        """The others whose join a group from here waits for, each with the time it should be ready at (0: unknown)."""
        return {peer: at for peer, at in self._here.items() if at is not None and self._counts(peer)}

    def unsure(self) -> set[str]:
        """The others whose join a group from here does not wait for, but their answer: one may be in a group already,
        or have come to this state since it was seen at another."""
        asked = self._context.seen.keys() | self._context.heard | self._here.keys()
        return {peer for peer in asked - self._answered if self._here.get(peer) is None and self._counts(peer)}

    def _counts(self, peer: str) -> bool:
        """Whether a group needs to know of this peer before it begins. While our links come back, so of lost ones."""
        return not self._is_out(peer) and (self._context.settling or peer not in self._context.lost)

    def _is_out(self, peer: str) -> bool:
        closed = self.members is not None and peer not in self.members
        return closed or peer in self._elsewhere or peer == self._context.me
