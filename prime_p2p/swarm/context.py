"""What the parts of a round share: who this peer is, whom it knows, and the list of what to do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field

from prime_p2p.network.frames import Message
from prime_p2p.swarm.events import Action, Send
from prime_p2p.swarm.gathering import RoundPolicy, Seen

MOST_LOST = (
    1024  # peers that are remembered as lost; one that is forgotten, and wanted, is lost again when it is sought
)


@dataclass
class RoundContext:
    """``nonces`` never repeat. ``seen`` is what was last seen of each of the others, which may be old. ``heard`` are
    the peers that have spoken to us and were not lost since, so no more than have a link to us; ``lost`` are those
    whose link broke and that have not spoken since. ``tokens`` were contributed to the lineage of our state, and
    ``terms`` name what we go by on the way to the next one. ``settling`` is set for a while after this peer was frozen
    or cut off from everybody: others took it for dead, and its links come back.
    """

    run: str
    me: str
    policy: RoundPolicy
    nonces: Iterator[int] = field(default_factory=itertools.count)
    tokens: int = 0
    terms: bytes = b""
    settling: bool = False
    seen: dict[str, Seen] = field(default_factory=dict)
    heard: set[str] = field(default_factory=set)
    _lost: dict[str, None] = field(default_factory=dict)  # in the order they were lost in
    _actions: list[Action] = field(default_factory=list)

    @property
    def lost(self) -> Set[str]:
        return self._lost.keys()

    def hear(self, peer: str) -> bool:
        """A peer speaks to us; returns whether it was lost."""
        self.heard.add(peer)
        was_lost = peer in self._lost
        self._lost.pop(peer, None)
        return was_lost

    def lose(self, peer: str) -> None:
        """The link to a peer broke."""
        self.heard.discard(peer)
        self._lost.pop(peer, None)
        self._lost[peer] = None
        if len(self._lost) > MOST_LOST:
            del self._lost[next(iter(self._lost))]

    def see(self, view: Mapping[str, Seen]) -> None:
        """Take in a new view of the others. Who is missing in it is not gone: a broken link says so, not a view."""
        self.seen = {peer: seen for peer, seen in self.seen.items() if peer not in self.lost} | dict(view)

    def act(self, action: Action) -> None:
        self._actions.append(action)

    def send(self, to: str, message: Message) -> None:
        """Say something to another peer, if it can be reached."""
        if to != self.me and to not in self.lost:
            self.act(Send(to, message))

    def take_actions(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions
