"""Levels of 4 bits, two a byte: -7 to 7, each written as itself plus 8, so that 0 is none of them.

They are planar within a block of ``width`` elements: byte j has element j in its low half and element j +
ceil(width / 2) in its high half, so that each half is a run of elements. Where the width is odd, the last high half is
``ZERO``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int8 = npt.NDArray[np.int8]
UInt8 = npt.NDArray[np.uint8]

ZERO = 8
"""The level 0 as it is written."""

ZEROS = ZERO << 4 | ZERO
"""A byte of two of them."""

_STEP = 64 * 1024  # bytes looked at in one go

_LOW = np.uint8(15)
_SHIFT = np.uint8(16)  # a multiplication, which numpy does faster than a shift to the left


def pack(levels: UInt8, out: UInt8) -> None:
    """Write blocks of levels, each plus ZERO (shape [rows, width]), into ``out`` ([rows, ceil(width / 2)])."""
    half = out.shape[1]
    pairs = levels.shape[1] - half
    np.multiply(levels[:, half:], _SHIFT, out=out[:, :pairs])
    out[:, pairs:] = ZERO << 4
    out |= levels[:, :half]


def unpack(packed: UInt8, out: Int8) -> None:
    """Write the levels of blocks (shape [rows, ceil(width / 2)]) into ``out`` ([rows, width], contiguous)."""
    half = packed.shape[1]
    written = out.view(np.uint8)
    np.bitwise_and(packed, _LOW, out=written[:, :half])
    np.right_shift(packed[:, : out.shape[1] - half], np.uint8(4), out=written[:, half:])
    np.subtract(written, np.uint8(ZERO), out=written)


def wrong_byte(packed: UInt8, n: int) -> int | None:
    """The index of the first byte that ``pack`` never writes, of a vector of n elements; None where there is none."""
    for start in range(0, len(packed), _STEP):
        piece = packed[start : start + _STEP]
        low = piece & _LOW
        if piece.min() < _SHIFT or low.min() == 0:
            return start + int(((piece < _SHIFT) | (low == 0)).argmax())
    if n % 2 and packed[-1] >> 4 != ZERO:
        return len(packed) - 1
    return None
