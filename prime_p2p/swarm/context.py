"""What the parts of a round share: who this peer is, whom it knows, and the list of what to do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prime_p2p.network.frames import Message
from prime_p2p.swarm.events import Action, Send
from prime_p2p.swarm.gathering import RoundPolicy, Seen


@dataclass
class RoundContext:
    """``nonces`` never repeat. ``seen`` is what was last seen of each of the others, which may be old. ``heard`` are
    the peers that have spoken to us and were not lost since, ``lost`` those whose link broke and that have not spoken
    since. ``tokens`` were contributed to the lineage of our state, and ``terms`` name what we go by on the
    way to the next one. ``settling`` is set for a while after this peer was
    frozen or cut off from everybody: others took it for dead, and its links come back.
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
    lost: set[str] = field(default_factory=set)
    _actions: list[Action] = field(default_factory=list)

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
