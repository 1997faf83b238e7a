"""Blocks of small integers: how a float32 vector travels, and the arithmetic that averages such vectors.

A vector is cut into blocks of 1024 elements. Each block keeps one float32 scale and, for every element, a level: the
whole number of scales that is nearest to it (ties to even). There are two codecs. ``int8`` has levels from -127 to 127,
in a byte each; ``int4`` from -7 to 7, two in a byte (``nibbles.py``). The scale is a 127th or a 7th of the largest
magnitude of the block. This is the absmax block quantisation of Dettmers et al., "8-bit Optimizers via Block-wise
Quantization" (https://arxiv.org/abs/2110.02861), with a linear table.

The mean that a group makes, quantised once more by its owner, is off by at most half a level of every contributor's
block, weighted like the contributor, and half a level of its own: together by a 127th or a 7th of the weighted mean of
the blocks' largest magnitudes, and the roundings of float32.

Each multiply and each add is an operation of its own, rounded by itself, never fused: from the same bytes every
processor makes the same bytes. How a vector is cut into chunks or slices never changes a result. Where there are
compiled kernels, they do the work in one pass. Elsewhere NumPy does, over chunks that fit a core's cache, of which a
function allocates two at most. Either releases the GIL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from prime_p2p.allreduce import nibbles
from prime_p2p.allreduce.nibbles import Int8, UInt8
from prime_p2p.errors import BadInput
from prime_p2p.kernels import compiled

Float32 = npt.NDArray[np.float32]

BITS = {"int8": 8, "int4": 4}
"""The codecs by name, and the bits of a level in each."""

BLOCK = 1024
"""Elements that share one scale."""

CHUNK = 128 * BLOCK
"""Elements worked on at a time: half a megabyte of float32, which stays in a core's second-level cache."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What the bits of a level decide: levels go from -top to top, and 0 is written as ``zero``."""

    top: np.float32
    largest_scale: np.float32
    zero: int
    zeros: int  # a byte of the values that is all zeros


_KINDS = {
    8: _Kind(np.float32(127), np.float32(2.0**119), 0, 0),
    4: _Kind(np.float32(7), np.float32(2.0**123), nibbles.ZERO, nibbles.ZEROS),
}

LARGEST = {bits: float(kind.top) * float(kind.largest_scale) for bits, kind in _KINDS.items()}
"""Largest magnitude that is quantised, by the bits of a level (8.4e37, 7.4e37): no product of a scale and a level, and
no weighted mean, overflows float32."""

_SMALLEST_FAST = np.float32(2.0**-119)
"""Below this magnitude top / absmax overflows or the scale may be denormal, and a block takes the float64 path."""

_ROUNDS = 1.5 * 2.0**23
"""Added to a float32 of at most 2**22, it rounds that to a whole number (ties to even), which its low bits then are."""


class NonFinite(ValueError):
    """A vector holds NaN, an infinity or a magnitude above LARGEST, the first one at the flat index ``index``."""

    def __init__(self, index: int) -> None:
        super().__init__(f"element {index} is not finite, or too large to be averaged")
        self.index = index


@dataclass(frozen=True, eq=False, slots=True)
class BlockVector:
    """A float32 vector of ``n`` elements as blocks: element i stands for scales[i // BLOCK] * its level.

    ``bits`` is 8 or 4, those of a level. The arrays are contiguous and may be views of larger ones. The last block may
    be partial. The wire form is all scales, then all values, little-endian.
    """

    n: int
    values: Int8 | UInt8  # 8 bits: the levels, int8 [n]; 4 bits: as in nibbles.py, uint8 [ceil(n / 2)]
    scales: Float32  # [ceil(n / BLOCK)]
    bits: int = 8

    @classmethod
    def empty(cls, n: int, bits: int = 8) -> BlockVector:
        """A vector of n zeros in memory whose pages are there already, so that no kernel waits for page faults."""
        values = np.full(_value_bytes(n, bits), _KINDS[bits].zeros, np.uint8)
        scales = np.empty(blocks_of(n), np.float32)
        scales.fill(0)
        return cls(n, values.view(np.int8) if bits == 8 else values, scales, bits)

    @classmethod
    def over(cls, n: int, wire: bytes | bytearray | memoryview, bits: int = 8) -> BlockVector:
        """A vector over its wire form, without a copy; read-only where the buffer is.

        Raises ValueError when the buffer is not ``wire_bytes(n, bits)`` long.
        """
        if len(wire) != wire_bytes(n, bits):
            raise ValueError(f"{n} elements of {bits} bits travel in {wire_bytes(n, bits)} bytes, not in {len(wire)}")
        scales = np.frombuffer(wire, np.float32, blocks_of(n))
        values = np.frombuffer(wire, np.uint8, _value_bytes(n, bits), offset=scales.nbytes)
        return cls(n, values.view(np.int8) if bits == 8 else values, scales, bits)

    @property
    def blocks(self) -> int:
        return len(self.scales)

    @property
    def nbytes(self) -> int:
        """Bytes of the wire form."""
        return self.scales.nbytes + self.values.nbytes

    def slice(self, start_block: int, stop_block: int) -> BlockVector:
        """The blocks start_block to stop_block (exclusive), as a view."""
        n = max(0, min(stop_block * BLOCK, self.n) - start_block * BLOCK)
        start = start_block * BLOCK * self.bits // 8
        values = self.values[start : start + _value_bytes(n, self.bits)]
        return BlockVector(n, values, self.scales[start_block:stop_block], self.bits)

    @property
    def arrays(self) -> tuple[UInt8, Float32]:
        """The values as bytes, and the scales, for a compiled kernel."""
        return self.values.view(np.uint8), self.scales

    def buffers(self) -> tuple[memoryview, memoryview]:
        """The wire form as two byte views of this very memory: scales, values."""
        return self.scales.view(np.uint8).data, self.values.view(np.uint8).data

    def digest(self) -> bytes:
        """blake3 (32 bytes) of the length, the bits, the scales and the values."""
        scales, values = self.buffers()
        head = self.n.to_bytes(7, "little") + bytes([0 if self.bits == 8 else self.bits])
        return blake3(head).update(scales).update(values).digest()

    def check(self) -> None:
        """Raise NonFinite for bytes that ``quantise`` never writes; to be called on what came from somebody else.

        The index is that of the first element of the first bad block. Vectors that pass can be averaged with
        non-negative coefficients that sum to 1 without an overflow.
        """
        # Negated, so that NaN is caught too.
        bad = ~((self.scales >= 0) & (self.scales <= _KINDS[self.bits].largest_scale))
        if bad.any():
            raise NonFinite(int(bad.argmax()) * BLOCK)
        if self.bits == 4:
            byte = nibbles.wrong_byte(self.values.view(np.uint8), self.n)
            if byte is not None:
                raise NonFinite(byte // (BLOCK // 2) * BLOCK)
        elif self.n and self.values.min() < -127:
            raise NonFinite(int(self.values.argmin()) // BLOCK * BLOCK)


def bits_of(codec: str) -> int:
    """The bits of a level in the codec of this name. Raises BadInput where there is none."""
    if codec not in BITS:
        raise BadInput(f"the codec must be {' or '.join(BITS)}, not {codec!r}")
    return BITS[codec]


def blocks_of(n: int) -> int:
    """Blocks of a vector of n elements."""
    return -(-n // BLOCK)


def wire_bytes(n: int, bits: int = 8) -> int:
    """Bytes of the wire form of a vector of n elements."""
    return _value_bytes(n, bits) + 4 * blocks_of(n)


def _value_bytes(n: int, bits: int) -> int:
    return -(-n * bits // 8)


def quantise(x: Float32, out: BlockVector, start: int = 0) -> None:
    """Write x (shape [m], contiguous) into ``out`` from element ``start`` on.

    ``start`` is a multiple of BLOCK, and so is m unless x ends where ``out`` ends: a vector can be quantised in pieces.

    For every element |x - x^| <= absmax / 254 * (1 + 2**-14) + 2**-149 with 8 bits, and absmax / 14 instead of a 254th
    with 4, with absmax the largest magnitude of its block: half a level, and the roundings of float32. Zeros are exact.
    It holds for denormals as well.

    Raises NonFinite, with the index counted in ``out``, for NaN, infinities and magnitudes above LARGEST; ``out`` is
    then partly written. Raises ValueError where x does not fit as described.
    """
    stop = start + len(x)
    if start % BLOCK or stop > out.n or (len(x) % BLOCK and stop != out.n):
        raise ValueError(f"elements {start} to {stop} are not whole blocks of a vector of {out.n}")
    if compiled.KERNELS is not None:
        part = out.slice(start // BLOCK, blocks_of(stop))
        _all_fit(compiled.KERNELS.quantise(x, out.bits, part.arrays), start)
        return
    scratch = np.empty(min(CHUNK, len(x)), np.float32)
    room = np.empty(len(scratch) if out.bits == 4 else 0, np.uint8)
    for tile in _tiles(len(x)):
        row = start // BLOCK + tile.row
        try:
            _quantise_blocks(
                x[tile.start : tile.stop].reshape(tile.shape),
                out.slice(row, row + tile.rows),
                scratch[: tile.stop - tile.start].reshape(tile.shape),
                room,
            )
        except NonFinite as error:
            raise NonFinite(start + tile.start + error.index) from None


def dequantise(vector: BlockVector, out: Float32) -> None:
    """Write the vector's float32 elements into ``out`` (shape [n], contiguous)."""
    if len(out) != vector.n:
        raise ValueError(f"{len(out)} elements for a vector of {vector.n}")
    if compiled.KERNELS is not None:
        compiled.KERNELS.dequantise(vector.arrays, vector.bits, out)
        return
    room = _room(vector)
    for tile in _tiles(vector.n):
        target = out[tile.start : tile.stop].reshape(tile.shape)
        np.copyto(target, _levels(vector, tile, room))
        _scale(target, vector.scales[tile.row : tile.row + tile.rows], target)


def accumulate(acc: Float32, vector: BlockVector, coefficient: float, first: bool, scratch: Float32) -> None:
    """acc = coefficient * vector where ``first``, else acc += coefficient * vector.

    ``acc`` has shape [n] and is contiguous; ``scratch`` has at least min(CHUNK, n) elements and is overwritten.

    The arithmetic, in float32: coefficient times scale once a block, times the level, added to acc. After G vectors
    with coefficients c, |acc - exact| <= (G + 3) * 2**-24 * sum |c * scale * level| + G * 2**-142, where exact is the
    sum without any rounding.
    """
    factor = np.float32(coefficient)
    room = _room(vector)
    for tile in _tiles(vector.n):
        factors = vector.scales[tile.row : tile.row + tile.rows] * factor
        levels = _levels(vector, tile, room)
        target = acc[tile.start : tile.stop].reshape(tile.shape)
        if first:
            np.copyto(target, levels)
            _scale(target, factors, target)
        else:
            product = scratch[: tile.stop - tile.start].reshape(tile.shape)
            np.copyto(product, levels)
            _scale(product, factors, product)
            target += product


def average(vectors: Sequence[BlockVector], coefficients: Sequence[float], out: BlockVector) -> None:
    """Quantise the sum of coefficient times vector, over vectors of the length of ``out``, in order.

    The arithmetic is that of ``accumulate`` and then ``quantise``. Raises NonFinite as ``quantise`` does, but not where
    the vectors pass ``check``, no coefficient is negative, and they sum to 1.
    """
    if any((vector.n, vector.bits) != (out.n, out.bits) for vector in vectors):
        raise ValueError(f"vectors of other lengths or bits than {out.n} elements of {out.bits} bits")
    if compiled.KERNELS is not None:
        arrays = [vector.arrays for vector in vectors]
        _all_fit(compiled.KERNELS.average(arrays, coefficients, out.n, out.bits, out.arrays))
        return
    mean, scratch = np.empty((2, min(CHUNK, out.n)), np.float32)
    for start in range(0, out.blocks, CHUNK // BLOCK):  # the sum of so many stays in the cache
        part = out.slice(start, start + CHUNK // BLOCK)
        for index, (vector, coefficient) in enumerate(zip(vectors, coefficients, strict=True)):
            given = vector.slice(start, start + CHUNK // BLOCK)
            accumulate(mean[: part.n], given, coefficient, index == 0, scratch)
        quantise(mean[: part.n], part)


def _all_fit(unfit: int, start: int = 0) -> None:
    """Raise NonFinite for what a compiled kernel returned, unless that is -1; it began with element ``start``."""
    if unfit >= 0:
        raise NonFinite(start + unfit)


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


def _scale(x: Float32, factors: Float32, out: Float32) -> None:
    """Multiply each row of x by its factor.

    With a buffer of more than a row, NumPy since 2.3 copies each factor as often as a row has elements, which takes as
    long as the multiplication.
    """
    before = np.setbufsize(BLOCK)
    try:
        np.multiply(x, factors[:, None], out=out)
    finally:
        np.setbufsize(before)


def _room(vector: BlockVector) -> Int8:
    """Where ``_levels`` unpacks a tile."""
    return np.empty(min(CHUNK, vector.n) if vector.bits == 4 else 0, np.int8)


def _levels(vector: BlockVector, tile: _Tile, room: Int8) -> Int8:
    """The levels of a tile, shape [rows, width]: those of the vector where they have a byte each, else in ``room``."""
    if vector.bits == 8:
        return vector.values[tile.start : tile.stop].view(np.int8).reshape(tile.shape)
    first, last = _value_bytes(tile.start, 4), _value_bytes(tile.stop, 4)
    levels = room[: tile.stop - tile.start].reshape(tile.shape)
    nibbles.unpack(vector.values[first:last].view(np.uint8).reshape(tile.rows, -1), levels)
    return levels


def _quantise_blocks(x: Float32, out: BlockVector, scratch: Float32, room: UInt8) -> None:
    """Quantise x into all of ``out``: x and scratch have shape [rows, width]; room is for as many levels of 4 bits."""
    kind = _KINDS[out.bits]
    absmax = _absmax(x)
    if not np.maximum.reduce(absmax) <= LARGEST[out.bits]:  # also true for NaN
        raise NonFinite(int(np.argmin(np.abs(x).ravel() <= LARGEST[out.bits])))
    np.divide(absmax, kind.top, out=out.scales)
    tiny = np.minimum.reduce(absmax) < _SMALLEST_FAST
    if tiny:
        inverse = np.divide(kind.top, absmax, out=np.zeros_like(absmax), where=absmax >= _SMALLEST_FAST)
    else:
        inverse = kind.top / absmax
    _scale(x, inverse, scratch)
    scratch += np.float32(_ROUNDS + kind.zero)
    levels = (room[: x.size] if out.bits == 4 else out.values.view(np.uint8)).reshape(x.shape)
    np.copyto(levels, scratch.view(np.int32), casting="unsafe")
    if tiny:
        for row in np.flatnonzero((absmax < _SMALLEST_FAST) & (absmax > 0)):
            out.scales[row], exact = _tiny_block(x[row], float(absmax[row]), float(kind.top))
            np.copyto(levels[row], exact + kind.zero, casting="unsafe")
    if out.bits == 4:
        nibbles.pack(levels, out.values.view(np.uint8).reshape(len(x), -1))


def _absmax(x: Float32) -> Float32:
    """The largest magnitude of each row, NaN where it has one.

    The bits of floats of one sign are in the order of their magnitudes, NaN last. So the largest signed integer is the
    largest positive float, and the largest unsigned one the largest negative float, where there is any. No float is
    compared, so none is asked whether it is NaN.
    """
    positive = np.maximum.reduce(x.view(np.int32), axis=1, initial=0)
    other = np.maximum.reduce(x.view(np.uint32), axis=1) & np.uint32(0x7FFFFFFF)
    return np.maximum(positive.view(np.uint32), other).view(np.float32)


def _tiny_block(x: Float32, absmax: float, top: float) -> tuple[np.float32, npt.NDArray[np.int16]]:
    """The scale and the levels of one block of nearly or truly denormal elements, found in float64.

    The scale is rounded up: a denormal one rounded to nearest can be so small that ``top`` levels do not reach absmax.
    """
    scale = np.float32(absmax / top)
    if float(scale) * top < absmax:
        scale = np.nextafter(scale, np.float32(1))
    return scale, np.rint(x.astype(np.float64) / float(scale)).astype(np.int16)
