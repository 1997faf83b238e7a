"""Int8 blocks: how a float32 vector travels, and the arithmetic that averages such vectors.

A vector is cut into blocks of 1024 elements. Each block keeps one float32 scale, a 127th of its largest magnitude, and
one int8 an element, rounded to nearest (ties to even). This is the absmax block quantisation of Dettmers et al., "8-bit
Optimizers via Block-wise Quantization" (https://arxiv.org/abs/2110.02861), with a linear table.

Every function works in place over chunks that fit a core's cache and allocates at most one chunk. The ufuncs underneath
release the GIL. Each multiply and each add is an operation of its own, rounded by itself, never fused: from the same
bytes every processor makes the same bytes. How a vector is cut into chunks or slices never changes a result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from blake3 import blake3

Float32 = npt.NDArray[np.float32]
Int8 = npt.NDArray[np.int8]

BLOCK = 1024
"""Elements that share one scale."""

CHUNK = 64 * BLOCK
"""Elements worked on at a time: with its scratch half a megabyte, which stays in a core's second-level cache."""

_LEVELS = np.float32(127)

LARGEST = float(127 * 2.0**119)
"""Largest magnitude that is quantised: no product of a scale and a value, and no weighted mean, overflows float32."""

_LARGEST_SCALE = np.float32(2.0**119)

_SMALLEST_FAST = np.float32(2.0**-119)
"""Below this magnitude 127 / absmax overflows or the scale is denormal, and a block takes the float64 path."""


class NonFinite(ValueError):
    """A vector holds NaN, an infinity or a magnitude above LARGEST, the first one at the flat index ``index``."""

    def __init__(self, index: int) -> None:
        super().__init__(f"element {index} is not finite, or too large to be averaged")
        self.index = index


@dataclass(frozen=True, eq=False, slots=True)
class BlockVector:
    """A float32 vector of ``n`` elements as int8 blocks: element i stands for scales[i // BLOCK] * values[i].

    The arrays are contiguous and may be views of larger ones. The last block may be partial.
    The wire form is all scales, then all values, little-endian.
    """

    n: int
    values: Int8  # [n]
    scales: Float32  # [ceil(n / BLOCK)]

    @classmethod
    def empty(cls, n: int) -> BlockVector:
        """A vector of n zeros in memory whose pages are there already, so that no kernel waits for page faults."""
        vector = cls(n, np.empty(n, np.int8), np.empty(blocks_of(n), np.float32))
        vector.values.fill(0)
        vector.scales.fill(0)
        return vector

    @classmethod
    def over(cls, n: int, wire: bytes | bytearray | memoryview) -> BlockVector:
        """A vector over its wire form, without a copy; read-only where the buffer is.

        Raises ValueError when the buffer is not ``wire_bytes(n)`` long.
        """
        if len(wire) != wire_bytes(n):
            raise ValueError(f"{n} elements travel in {wire_bytes(n)} bytes, not in {len(wire)}")
        scales = np.frombuffer(wire, np.float32, blocks_of(n))
        values = np.frombuffer(wire, np.int8, n, offset=scales.nbytes)
        return cls(n, values, scales)

    @property
    def blocks(self) -> int:
        return len(self.scales)

    @property
    def nbytes(self) -> int:
        """Bytes of the wire form."""
        return self.scales.nbytes + self.values.nbytes

    def slice(self, start_block: int, stop_block: int) -> BlockVector:
        """The blocks start_block to stop_block (exclusive), as a view."""
        values = self.values[start_block * BLOCK : stop_block * BLOCK]
        return BlockVector(len(values), values, self.scales[start_block:stop_block])

    def buffers(self) -> tuple[memoryview, memoryview]:
        """The wire form as two byte views of this very memory: scales, values."""
        return self.scales.view(np.uint8).data, self.values.view(np.uint8).data

    def digest(self) -> bytes:
        """blake3 (32 bytes) of the length, the scales and the values."""
        scales, values = self.buffers()
        return blake3(self.n.to_bytes(8, "little")).update(scales).update(values).digest()

    def check(self) -> None:
        """Raise NonFinite for bytes that ``quantise`` never writes; to be called on what came from somebody else.

        The index is that of the first element of the first bad block. Vectors that pass can be averaged with
        non-negative coefficients that sum to 1 without an overflow.
        """
        # Negated, so that NaN is caught too.
        bad = ~((self.scales >= 0) & (self.scales <= _LARGEST_SCALE))
        if bad.any():
            raise NonFinite(int(bad.argmax()) * BLOCK)
        if self.n and self.values.min() < -127:
            raise NonFinite(int(self.values.argmin()) // BLOCK * BLOCK)


def blocks_of(n: int) -> int:
    """Blocks of a vector of n elements."""
    return -(-n // BLOCK)


def wire_bytes(n: int) -> int:
    """Bytes of the wire form of a vector of n elements."""
    return n + 4 * blocks_of(n)


def quantise(x: Float32, out: BlockVector, start: int = 0) -> None:
    """Write x (shape [m]) into ``out`` from element ``start`` on.

    ``start`` is a multiple of BLOCK, and so is m unless x ends where ``out`` ends: a vector can be quantised in pieces.

    For every element |x - x^| <= absmax / 254 * (1 + 2**-14) + 2**-149, with absmax the largest magnitude of its block:
    half a level, and the roundings of float32. Zeros are exact. It holds for denormals as well.

    Raises NonFinite, with the index counted in ``out``, for NaN, infinities and magnitudes above LARGEST (8.4e37);
    ``out`` is then partly written. Raises ValueError where x does not fit as described.
    """
    stop = start + len(x)
    if start % BLOCK or stop > out.n or (len(x) % BLOCK and stop != out.n):
        raise ValueError(f"elements {start} to {stop} are not whole blocks of a vector of {out.n}")
    scratch = np.empty(min(CHUNK, len(x)), np.float32)
    for tile in _tiles(len(x)):
        row = (start + tile.start) // BLOCK
        try:
            _quantise_tile(
                x[tile.start : tile.stop].reshape(tile.shape),
                out.values[start + tile.start : start + tile.stop].reshape(tile.shape),
                out.scales[row : row + tile.rows],
                scratch[: tile.stop - tile.start].reshape(tile.shape),
            )
        except NonFinite as error:
            raise NonFinite(start + tile.start + error.index) from None


def dequantise(vector: BlockVector, out: Float32) -> None:
    """Write the vector's float32 elements into ``out`` (shape [n], contiguous)."""
    for tile in _tiles(vector.n):
        target = out[tile.start : tile.stop].reshape(tile.shape)
        np.copyto(target, vector.values[tile.start : tile.stop].reshape(tile.shape))
        target *= vector.scales[tile.row : tile.row + tile.rows, None]


def accumulate(acc: Float32, vector: BlockVector, coefficient: float, first: bool, scratch: Float32) -> None:
    """acc = coefficient * vector where ``first``, else acc += coefficient * vector.

    ``acc`` has shape [n] and is contiguous; ``scratch`` has at least min(CHUNK, n) elements and is overwritten.

    The arithmetic, in float32: coefficient times scale once a block, times the value, added to acc. After G vectors
    with coefficients c, |acc - exact| <= (G + 3) * 2**-24 * sum |c * scale * value| + G * 2**-142, where exact is the
    sum without any rounding.
    """
    factor = np.float32(coefficient)
    for tile in _tiles(vector.n):
        factors = (vector.scales[tile.row : tile.row + tile.rows] * factor)[:, None]
        values = vector.values[tile.start : tile.stop].reshape(tile.shape)
        target = acc[tile.start : tile.stop].reshape(tile.shape)
        if first:
            np.copyto(target, values)
            target *= factors
        else:
            product = scratch[: tile.stop - tile.start].reshape(tile.shape)
            np.copyto(product, values)
            product *= factors
            target += product


@dataclass(frozen=True, slots=True)
class _Tile:
    """Elements start to stop of a vector: a chunk of whole blocks, or the partial block at its end."""

    start: int
    stop: int
    shape: tuple[int, int]  # blocks, elements of each

    @property
    def row(self) -> int:
        return self.start // BLOCK

    @property
    def rows(self) -> int:
        return self.shape[0]


def _tiles(n: int) -> Iterator[_Tile]:
    whole = n - n % BLOCK
    for start in range(0, whole, CHUNK):
        stop = min(start + CHUNK, whole)
        yield _Tile(start, stop, ((stop - start) // BLOCK, BLOCK))
    if whole < n:
        yield _Tile(whole, n, (1, n - whole))


def _quantise_tile(x: Float32, values: Int8, scales: Float32, scratch: Float32) -> None:
    """Quantise blocks: x, values and scratch have shape [rows, width], scales [rows]."""
    np.abs(x, out=scratch)
    absmax = scratch.max(axis=1)
    if not absmax.max() <= LARGEST:  # also true for NaN
        raise NonFinite(int(np.argmin(scratch.ravel() <= LARGEST)))
    np.divide(absmax, _LEVELS, out=scales)
    fast = absmax >= _SMALLEST_FAST
    inverse = np.divide(_LEVELS, absmax, out=np.zeros_like(absmax), where=fast)
    np.multiply(x, inverse[:, None], out=scratch)
    np.rint(scratch, out=scratch)
    np.copyto(values, scratch, casting="unsafe")
    if not fast.all():
        for row in np.flatnonzero(~fast & (absmax > 0)):
            scales[row] = _quantise_tiny_block(x[row], values[row], float(absmax[row]))


def _quantise_tiny_block(x: Float32, values: Int8, absmax: float) -> np.float32:
    """Quantise one block of nearly or truly denormal elements in float64 and return its scale.

    The scale is rounded up: a denormal one rounded to nearest can be so small that 127 levels do not reach absmax.
    """
    scale = np.float32(absmax / 127)
    if float(scale) * 127 < absmax:
        scale = np.nextafter(scale, np.float32(1))
    values[:] = np.rint(x.astype(np.float64) / float(scale))
    return scale
