"""Where a peer would be on the network."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prime_p2p.doctor.facts import Reach

if TYPE_CHECKING:
    from prime_p2p.network.node import Node

Ask = Callable[[Sequence[str], float], Awaitable[Sequence[Reach]]]
"""Has others connect to addresses, in so many seconds; nothing comes of it where nobody could be asked."""


@dataclass(frozen=True)
class Place:
    """How a peer would be reached, whom it knows, and how many there are in a group.

    With ``or_next`` a port that is taken is no problem: the next free one will do. ``dial_back`` gives, for a node,
    what has others connect to it; without one they are asked by ``network.dial_back``.
    """

    bootstrap: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ("0.0.0.0",)
    port: int = 0
    or_next: bool = False
    announce: tuple[str, ...] = ()
    group: int = 32
    dial_back: Callable[[Node], Ask] | None = None
