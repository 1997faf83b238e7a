"""How much of the vector each peer of a group reduces, so that the slowest link is done as early as possible.

In a group of G, a peer that owns the share x of the vector sends the other shares to their owners and its reduced share
back to everybody: (1 - x) + (G - 1) * x = 1 + (G - 2) * x vectors; and it receives as much. The split minimises the
largest time (1 + (G - 2) * x) / b among the peers with bandwidth b > 0; peers with b = 0 own nothing. hivemind finds
such a split with a linear program (Diskin et al., https://arxiv.org/abs/2106.10207); here it is in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction


def split(blocks: int, bandwidths: Sequence[float]) -> list[int]:
    """The number of blocks of each peer's part: `blocks` in all, peers in the order of `bandwidths` (any one unit).

    The arithmetic is exact, so that every machine computes the same split from the same numbers. All bandwidths 0:
    equal parts. Raises ValueError without peers, or for a bandwidth that is negative or not finite.
    """
    if not bandwidths:
        raise ValueError("a vector cannot be split between no peers")
    for bandwidth in bandwidths:
        if not (math.isfinite(bandwidth) and bandwidth >= 0):
            raise ValueError(f"a bandwidth is a finite number >= 0, not {bandwidth}")
    return _round(blocks, _shares([Fraction(bandwidth) for bandwidth in bandwidths]))


def _shares(bandwidths: list[Fraction]) -> list[Fraction]:
    """Shares of the vector in the optimal split; their sum is 1."""
    owners = [bandwidth for bandwidth in bandwidths if bandwidth > 0]
    if not owners:
        return [Fraction(1, len(bandwidths))] * len(bandwidths)
    if len(bandwidths) <= 2:
        wanted = bandwidths
    else:
        # In the time xi, peer i can send xi * b vectors, one of which is owed whatever it owns. Hence it has time for a
        # share of (xi * b - 1) / (G - 2). xi is the least time in which these shares reach 1 and nobody's is negative.
        xi = max((len(bandwidths) - 2 + len(owners)) / sum(owners, Fraction(0)), 1 / min(owners))
        wanted = [max(Fraction(0), xi * bandwidth - 1) for bandwidth in bandwidths]
    total = sum(wanted, Fraction(0))
    return [share / total for share in wanted]


def _round(blocks: int, shares: list[Fraction]) -> list[int]:
    """Whole blocks by the largest remainders; of equal remainders the earlier peer's counts as larger."""
    exact = [blocks * share for share in shares]
    parts = [math.floor(part) for part in exact]
    by_remainder = sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))
    for i in by_remainder[: blocks - sum(parts)]:
        parts[i] += 1
    return parts
