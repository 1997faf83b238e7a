"""The group of one round: who is in it, in which order, with which weight, and who leads.

Everything here is pure, so that every peer computes the same from the same facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache

import msgpack
from blake3 import blake3

from prime_p2p.allreduce.partition import split

_INVERTED = bytes(range(255, -1, -1))


@dataclass(frozen=True)
class Member:
    """One peer of a group.

    ``weight`` is the number of tokens behind its pseudo-gradient, ``bandwidth`` what it can send (any unit, the same
    for all), ``nonce`` the join it made: see ``messages.Join``.
    """

    peer_id: str
    nonce: int
    weight: int
    bandwidth: float


@dataclass(frozen=True)
class Group:
    """The ordered peers of one attempt at an outer step, from the state named by ``step`` and ``digest``."""

    run: str
    step: int
    digest: bytes
    members: tuple[Member, ...]

    @cached_property
    def id(self) -> bytes:
        """32 bytes that bind everything the members must agree on."""
        lines = [(m.peer_id, m.nonce, m.weight, m.bandwidth) for m in self.members]
        return blake3(msgpack.packb(("prime-p2p group 1", self.run, self.step, self.digest, lines))).digest()

    @cached_property
    def peer_ids(self) -> tuple[str, ...]:
        return tuple(member.peer_id for member in self.members)

    @cached_property
    def total_weight(self) -> int:
        return sum(member.weight for member in self.members)

    def member(self, peer_id: str) -> Member | None:
        return next((member for member in self.members if member.peer_id == peer_id), None)

    def part_blocks(self, blocks: int) -> list[int]:
        """How many of a vector's codec blocks each member reduces, in the order of the members."""
        return split(blocks, [member.bandwidth for member in self.members])


def rank(tokens: int, digest: bytes) -> tuple[int, bytes]:
    """The rank of a state: of two lineages the one with the larger goes on, and the other's peers move to it.

    More tokens contributed win, then the smaller digest. Along a lineage it only grows.
    """
    return tokens, digest.translate(_INVERTED)


def lead_order(run: str, step: int, peer_ids: Iterable[str]) -> list[str]:
    """The peers in the order in which they lead this outer step: the first leads, the next ones stand in for it."""
    return sorted(set(peer_ids), key=lambda peer_id: _rank(run, step, peer_id))


@lru_cache(maxsize=4096)
def _rank(run: str, step: int, peer_id: str) -> bytes:
    return blake3(f"{run}/{step}/{peer_id}".encode()).digest()


def without_conflicts(suspects: Mapping[str, Set[str]]) -> set[str]:
    """Leave out peers until nobody left suspects anybody left.

    ``suspects[a]`` are the peers that failed ``a`` in this outer step. A suspicion says that one connection does not
    work, not which end of it is at fault; so the peer with most broken connections goes first, and of two equals the
    one that more peers accuse.
    """
    kept = set(suspects)
    while True:
        broken = dict.fromkeys(kept, 0)
        accused = dict.fromkeys(kept, 0)
        for accuser in kept:
            for peer in suspects[accuser] & (kept - {accuser}):
                broken[accuser] += 1
                broken[peer] += 1
                accused[peer] += 1
        worst = max(kept, key=lambda peer: (broken[peer], accused[peer], peer), default=None)
        if worst is None or broken[worst] == 0:
            return kept
        kept.remove(worst)
