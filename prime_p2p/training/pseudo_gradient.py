"""The pseudo-gradient of one peer on its way to the others: as blocks, and only if it is fit to be averaged.

One that is not finite would spoil everybody's anchor, and one that is many times as large as usual nearly as much: an
inner loss that explodes on one peer moves the mean of all. Each peer looks at its own, before a byte of it is sent.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

import numpy as np

from prime_p2p.allreduce import codec
from prime_p2p.allreduce.codec import BlockVector, Float32, NonFinite
from prime_p2p.training.flat import SLICE, FlatParameters

REMEMBERED = 16  # sizes of contributed pseudo-gradients that tell what is usual
ENOUGH = 4  # of them before anything is said to be unusual


class UnfitPseudoGradient(Exception):
    """A pseudo-gradient that must not reach the others, and why."""


class UsualSize:
    """How large the pseudo-gradients of a peer usually are, to notice one that explodes.

    A size is the root mean square of the elements. Usual is the median of the last ones, so growth that is slow passes,
    however far it leads. One with more inner steps behind it than an earlier one had (after a missed round, or after
    one that was joined in a hurry) may be larger in proportion: parameters move at most that much further.
    """

    def __init__(self) -> None:
        self.past: deque[tuple[float, int]] = deque(maxlen=REMEMBERED)

    def remember(self, size: float, inner_steps: int) -> None:
        """A pseudo-gradient of this size went into an outer step. One of nothing tells nothing."""
        if 0 < size < math.inf:
            self.past.append((size, inner_steps))

    def growth(self, size: float, inner_steps: int) -> float:
        """How many times as large as usual a pseudo-gradient is; 0 as long as too few are known."""
        if len(self.past) < ENOUGH:
            return 0.0
        return size / median(past * max(1.0, inner_steps / behind) for past, behind in self.past)


class PseudoGradient:
    """Makes a peer's pseudo-gradients into ``blocks``, with levels of ``bits`` bits. One ``explosion_factor`` times as
    large as usual is not fit to be sent; 0 lets any size pass."""

    def __init__(self, parameters: FlatParameters, explosion_factor: float, bits: int = 8) -> None:
        self.blocks = BlockVector.empty(parameters.n, bits)
        self._parameters = parameters
        self._factor = explosion_factor
        self.usual = UsualSize()
        self._size, self._inner_steps = 0.0, 1

    def take(self, anchor: Float32, inner_steps: int) -> None:
        """The pseudo-gradient of ``inner_steps`` inner steps: the anchor minus the parameters, as blocks.

        Raises UnfitPseudoGradient where it is not finite, or explodes.
        """
        try:
            self._size = math.sqrt(self._quantise(anchor) / self._parameters.n)
        except NonFinite as error:
            raise UnfitPseudoGradient(f"that of {self._parameters.name_of(error.index)} is not finite") from None
        self._inner_steps = max(1, inner_steps)
        growth = self.usual.growth(self._size, self._inner_steps)
        if self._factor and growth > self._factor:
            name, share = self._largest_share(anchor)
            limit = f"explosion_factor is {self._factor:g}"
            raise UnfitPseudoGradient(f"it is {growth:.3g} times its usual size ({limit}), {share:.0%} of it in {name}")

    def contributed(self) -> None:
        """What was taken last went into an outer step."""
        self.usual.remember(self._size, self._inner_steps)

    def _quantise(self, anchor: Float32) -> float:
        """Fill the blocks; returns the sum of squares, found while each chunk is in the cache."""
        n, squares = self._parameters.n, 0.0
        scratch = np.empty(min(codec.CHUNK, n), np.float32)
        for start in range(0, n, codec.CHUNK):
            part = self._difference(anchor, start, scratch[: min(codec.CHUNK, n - start)])
            codec.quantise(part, self.blocks, start)
            with np.errstate(over="ignore"):
                squares += float(np.dot(part, part))
        return squares

    def _largest_share(self, anchor: Float32) -> tuple[str, float]:
        """The parameter with most of the sum of squares, and its share of it."""
        scratch = np.empty(min(SLICE, self._parameters.n), np.float32)
        squares: dict[str, float] = {}
        for name, first, stop in self._parameters.ranges():
            pieces = (
                self._difference(anchor, start, scratch[: min(SLICE, stop - start)])
                for start in range(first, stop, SLICE)
            )
            squares[name] = sum(float(np.sum(np.square(piece, dtype=np.float64))) for piece in pieces)
        largest = max(squares, key=lambda name: squares[name])
        return largest, squares[largest] / sum(squares.values())

    def _difference(self, anchor: Float32, start: int, out: Float32) -> Float32:
        self._parameters.read(start, out)
        return np.subtract(anchor[start : start + len(out)], out, out=out)
