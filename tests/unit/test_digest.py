"""The digest that names a state."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from blake3 import blake3

from prime_p2p.allreduce.codec import Float32
from prime_p2p.outer.digest import PIECE, digest_of_pieces, pieces, state_digest

ELEMENTS = PIECE // 4


def arrays(n: int) -> tuple[Float32, Float32]:
    anchor = np.arange(n, dtype=np.float32)
    return anchor, anchor * np.float32(-0.5)


def test_the_digest_is_the_hash_of_numbers_and_piece_hashes() -> None:
    anchor, momentum = arrays(ELEMENTS + 3)
    hashes = [
        blake3(part.tobytes()).digest()
        for part in (anchor[:ELEMENTS], anchor[ELEMENTS:], momentum[:ELEMENTS], momentum[ELEMENTS:])
    ]
    assert pieces(anchor, momentum) == hashes
    expected = blake3(b"prime-p2p outer state v1" + struct.pack("<QQQ", 7, 99, len(anchor)) + b"".join(hashes)).digest()
    assert state_digest(7, 99, anchor, momentum) == digest_of_pieces(7, 99, len(anchor), hashes) == expected


@pytest.mark.parametrize(("n", "count"), [(0, 0), (1, 2), (ELEMENTS, 2), (ELEMENTS + 1, 4), (3 * ELEMENTS, 6)])
def test_each_array_is_cut_into_pieces_of_its_own(n: int, count: int) -> None:
    assert len(pieces(*arrays(n))) == count


def test_everything_that_makes_a_state_is_in_its_digest() -> None:
    anchor, momentum = arrays(5000)
    other = anchor.copy()
    other[-1] = np.nextafter(other[-1], np.float32(0))
    digests = [
        state_digest(1, 2, anchor, momentum),
        state_digest(2, 2, anchor, momentum),
        state_digest(1, 3, anchor, momentum),
        state_digest(2, 1, anchor, momentum),
        state_digest(1, 2, momentum, anchor),
        state_digest(1, 2, other, momentum),
        state_digest(1, 2, anchor, other),
        state_digest(1, 2, anchor[:-1], momentum[:-1]),
        state_digest(1, 2, anchor[:0], momentum[:0]),
    ]
    assert len(set(digests)) == len(digests)
    assert {len(digest) for digest in digests} == {32}


def test_negative_zero_is_another_state_than_zero() -> None:
    zero = np.zeros(3, np.float32)
    assert state_digest(0, 0, zero, zero) != state_digest(0, 0, -zero, zero)


@pytest.mark.parametrize("threads", [2, 5])
def test_the_number_of_threads_does_not_change_a_digest(threads: int) -> None:
    anchor, momentum = arrays(4 * ELEMENTS + 1)
    assert state_digest(1, 2, anchor, momentum, threads) == state_digest(1, 2, anchor, momentum)
