"""What peers must agree on to make an outer step together, and what may change while a run goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from prime_p2p.outer.nesterov import OuterOptimizer


class OuterTerms(Protocol):
    """The outer optimizer and the name of all that is agreed on, by the outer step that a peer is at."""

    def outer_at(self, step: int) -> OuterOptimizer:
        """The optimizer that leads on from outer step ``step``."""
        ...

    def fingerprint(self, step: int) -> bytes:
        """At most 16 bytes, equal at two peers that may make the next outer step together."""
        ...


@dataclass(frozen=True)
class Unchanging:
    """The same from the first outer step to the last."""

    outer: OuterOptimizer

    def outer_at(self, step: int) -> OuterOptimizer:
        return self.outer

    def fingerprint(self, step: int) -> bytes:
        return b""
