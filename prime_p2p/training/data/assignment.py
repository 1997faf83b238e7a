"""Who reads what, with nobody to hand it out: pure arithmetic on what all peers of a lineage know.

A text of ``n`` sequences is read as an endless *stream*: position p is a sequence of epoch p // n, and each epoch has
every sequence once, in an order of its own. The tokens contributed to a state say how many sequences its lineage has
learnt from; that is where the next round begins to read, and every peer of the last group knows its place from there:

    position = contributed + rank · share + (sequences read since the last commit)

``rank`` is the peer's place among the sorted peer ids of the last group, ``share`` the sequences of one round of inner
steps. A peer that was not in the last group, or has read its share and missed the round, is an *outsider*: it reads a
share further on, half an epoch and a hash away from there.

What that gives, in positions of the stream:

- Two members of a group never read the same in one round.
- While every round has the same members, and all of them contribute a whole share, nothing is read twice and nothing is
  left out: each epoch goes through the text once.
- Otherwise a round of G members that contributed m sequences, and of outsiders that read g, makes at most
  G · share - m + g of them be read twice, and in the end leaves out no more than it makes be read twice, beside what is
  read ahead. (Those of its members read beyond the next beginning are no more than the gaps before it.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from blake3 import blake3

Positions = npt.NDArray[np.int64]

_ROUNDS = 4  # of the Feistel network; statistical mixing is all that is asked of it


@dataclass(frozen=True)
class Place:
    """How far a peer is.

    Attributes:
        contributed: Sequences behind the state that it holds.
        step: Outer steps behind it.
        group: The peers of the last of them; none where it is not known.
        share: Sequences that a peer reads from this outer step to the next one.
        read: Sequences that this peer has read since its last commit.
    """

    contributed: int
    step: int
    group: tuple[str, ...]
    share: int
    read: int


@dataclass(frozen=True)
class Assignment:
    """Where one peer reads, in a stream whose epochs have ``sequences``."""

    seed: int
    peer_id: str
    sequences: int

    def position(self, place: Place) -> int:
        """Where in the stream the next sequence to read is."""
        turn, within = divmod(place.read, place.share)
        members = sorted(place.group)
        if turn == 0 and self.peer_id in members:
            return place.contributed + members.index(self.peer_id) * place.share + within
        return place.contributed + self._outside(place.step, turn) + within

    def _outside(self, step: int, turn: int) -> int:
        half = self.sequences // 2
        return half + _number("outsider", self.seed, self.peer_id, step, turn) % max(1, half)

    def indices(self, positions: Positions) -> Positions:
        """Which sequences of the text are at these positions: int64 of the same shape, from 0 to ``sequences`` - 1."""
        found = np.empty_like(positions)
        epochs = positions // self.sequences
        for epoch in np.unique(epochs):
            of_it = epochs == epoch
            key = _number("epoch", self.seed, int(epoch))
            found[of_it] = permuted(positions[of_it] % self.sequences, self.sequences, key)
        return found


def permuted(numbers: Sequence[int] | Positions, n: int, key: int) -> Positions:
    """Where a permutation of 0..n-1 that belongs to ``key`` takes these numbers; no memory is needed for the others.

    A balanced Feistel network (Luby and Rackoff, 1988) on the next even number of bits, walked along until the number
    is below ``n`` again (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
    """
    half = max(1, -(-(n - 1).bit_length() // 2))
    mask = np.uint64((1 << half) - 1)
    keys = [np.uint64(_number("round", key, number)) for number in range(_ROUNDS)]
    walked = np.asarray(numbers, dtype=np.uint64)
    outside = np.ones(walked.shape, dtype=bool)
    while outside.any():
        walked[outside] = _feistel(walked[outside], np.uint64(half), mask, keys)
        outside = walked >= np.uint64(n)
    return walked.astype(np.int64)


def _feistel(
    numbers: npt.NDArray[np.uint64], half: np.uint64, mask: np.uint64, keys: Sequence[np.uint64]
) -> npt.NDArray[np.uint64]:
    left, right = numbers >> half, numbers & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return (left << half) | right


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele et al., 2014), modulo 2^64."""
    mixed = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _number(*parts: object) -> int:
    """A number of 64 bits that belongs to these parts."""
    return int.from_bytes(blake3(repr(parts).encode()).digest(8), "little")
