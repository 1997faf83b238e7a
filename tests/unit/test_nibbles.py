"""Two levels a byte: where each one lies, and which bytes nobody can have written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from prime_p2p.allreduce.codec import BLOCK, BlockVector, NonFinite, quantise
from prime_p2p.allreduce.nibbles import ZERO, ZEROS, pack, unpack, wrong_byte

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def packed(levels: list[list[int]]) -> Bytes:
    written = (np.array(levels) + ZERO).astype(np.uint8)
    out = np.full((len(levels), -(-written.shape[1] // 2)), 0xFF, np.uint8)
    pack(written, out)
    return out


def test_the_first_half_of_a_block_is_in_the_low_halves_and_the_second_in_the_high_ones() -> None:
    assert packed([[-7, 0, 1, 7]]).tolist() == [[0x91, 0xF8]]
    assert packed([[1, 2, 3], [-1, -2, -3]]).tolist() == [[0xB9, ZERO << 4 | 0xA], [0x57, ZERO << 4 | 6]]
    assert packed([[5]]).tolist() == [[ZERO << 4 | 0xD]]
    assert packed([[0, 0]]).tolist() == [[ZEROS]]


@pytest.mark.parametrize("width", [1, 2, 3, 511, 1023, BLOCK])
@pytest.mark.parametrize("rows", [1, 3])
def test_what_was_packed_is_unpacked(width: int, rows: int) -> None:
    levels = np.random.default_rng(width).integers(-7, 8, (rows, width))
    out = np.full((rows, width), 99, np.int8)
    unpack(packed(levels.tolist()), out)
    np.testing.assert_array_equal(out, levels)


def test_every_pair_of_levels_has_a_byte_of_its_own_and_no_other_byte_is_right() -> None:
    pairs = packed([[low, high] for high in range(-7, 8) for low in range(-7, 8)]).ravel()
    assert len(set(pairs.tolist())) == 225
    assert wrong_byte(pairs, 450) is None
    for byte in set(range(256)) - set(pairs.tolist()):
        assert wrong_byte(np.array([ZEROS, byte], np.uint8), 4) == 1, byte


def vector_of(n: int) -> BlockVector:
    vector = BlockVector.empty(n, 4)
    quantise(np.linspace(-1, 1, n, dtype=np.float32), vector)
    return vector


@pytest.mark.parametrize("wrong", [0x08, 0x80, 0x00, 0x0F, 0xF0])
@pytest.mark.parametrize("block", [0, 1, 200])
def test_a_half_that_is_no_level_is_found_in_its_block(block: int, wrong: int) -> None:
    vector = vector_of(201 * BLOCK)
    vector.check()
    vector.values[block * BLOCK // 2 + 77] = wrong
    vector.values[-1] = 0
    with pytest.raises(NonFinite) as caught:
        vector.check()
    assert caught.value.index == block * BLOCK


@pytest.mark.parametrize("n", [1, BLOCK - 1, 3 * BLOCK + 5])
def test_what_is_beyond_the_end_of_an_odd_vector_is_zero_or_refused(n: int) -> None:
    vector = vector_of(n)
    assert vector.values[-1] >> 4 == ZERO
    vector.check()
    for other in {*range(16)} - {ZERO}:
        vector.values[-1] = vector.values[-1] % 16 | other << 4
        with pytest.raises(NonFinite) as caught:
            vector.check()
        assert caught.value.index == (n - 1) // BLOCK * BLOCK


def test_any_bytes_are_refused_or_stand_for_numbers_that_would_be_written_like_that() -> None:
    random = np.random.default_rng(3)
    for n in (*range(1, 9), BLOCK, BLOCK + 1):
        values = random.integers(0, 256, (300, -(-n // 2)), dtype=np.uint8)
        for row in values:
            vector = BlockVector(n, row, np.ones(-(-n // BLOCK), np.float32), 4)
            levels = [half for byte in row.tolist() for half in (byte % 16, byte // 16)]
            possible = all(levels) and (n % 2 == 0 or row[-1] >> 4 == ZERO)
            assert (wrong_byte(vector.values.view(np.uint8), n) is None) == possible
