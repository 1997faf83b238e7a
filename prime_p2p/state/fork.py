"""What a peer gives up that goes over to another lineage: a fork heals by the other side's history taking its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prime_p2p.outer.state import OuterState


@dataclass(frozen=True)
class Held:
    """A state and what led to it: ``history`` has the digest of every outer step that is known of, its own included."""

    step: int
    tokens: int
    history: Mapping[int, bytes]

    @classmethod
    def of(cls, state: OuterState, history: Mapping[int, bytes]) -> Held:
        return cls(state.step, state.tokens, {**history, state.step: state.digest})

    @property
    def digest(self) -> bytes:
        return self.history[self.step]

    def __str__(self) -> str:
        return f"outer step {self.step} ({self.digest.hex()[:16]})"


def abandoned(ours: Held, theirs: Held) -> str | None:
    """What is given up where ``theirs`` takes the place of ``ours``, in a line; None where that is not known to be
    another lineage, but what came of ours in the meantime may be as well."""
    if theirs.history.get(ours.step) == ours.digest:
        return None
    if ours.step <= theirs.step and ours.step not in theirs.history:
        return None
    common = max((step for step, digest in ours.history.items() if theirs.history.get(step) == digest), default=None)
    if common is None:
        lost = f"at least {ours.step - min(ours.history)} outer steps of ours, all that our journal has, are given up"
    else:
        lost = f"{ours.step - common} outer steps of ours are given up, those since outer step {common}"
    return f"going over from {ours} to the lineage of {theirs}, which {_won(ours.tokens, theirs.tokens)}: {lost}"


def _won(ours: int, theirs: int) -> str:
    if theirs > ours:
        return f"has more tokens, {theirs:,} against {ours:,}"
    return f"has as many tokens, {theirs:,}, and the smaller digest"
