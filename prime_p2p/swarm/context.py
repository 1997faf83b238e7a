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
    """``lost`` are the peers whose link broke and that have not been heard of since; ``nonces`` never repeat."""

    run: str
    me: str
    policy: RoundPolicy
    nonces: Iterator[int] = field(default_factory=itertools.count)
    seen: Mapping[str, Seen] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    _actions: list[Action] = field(default_factory=list)

    def act(self, action: Action) -> None:
        self._actions.append(action)

    def send(self, to: str, message: Message) -> None:
        """Say something to another peer, if it can be reached."""
        if to != self.me and to not in self.lost:
            self.act(Send(to, message))

    def take_actions(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions
