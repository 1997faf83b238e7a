"""The vectors that the contenders average, and what their mean is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from prime_p2p.allreduce.codec import Float32

SCALE = np.float32(0.01)  # of the magnitude that pseudo-gradients have
_PIECE = 1 << 20


def vector(rank: int, n: int) -> Float32:
    """What the peer of this rank brings: n normally distributed elements, always the same ones."""
    result = np.empty(n, np.float32)
    for start, piece in _pieces(rank, n):
        result[start : start + len(piece)] = piece
    return result


def relative_error(found: Float32, peers: int) -> float:
    """How far ``found`` is from the mean of what so many peers bring: |found - mean| / |mean|, Euclidean norms."""
    off = size = 0.0
    for pieces in zip(*(_pieces(rank, len(found)) for rank in range(peers)), strict=True):
        start = pieces[0][0]
        mean = np.stack([piece for _, piece in pieces]).mean(axis=0, dtype=np.float64)
        off += float(np.sum((found[start : start + len(mean)] - mean) ** 2))
        size += float(np.sum(mean**2))
    return float(np.sqrt(off / size))


def _pieces(rank: int, n: int) -> Iterator[tuple[int, Float32]]:
    random = np.random.default_rng(rank)
    for start in range(0, n, _PIECE):
        yield start, random.standard_normal(min(_PIECE, n - start), np.float32) * SCALE
