"""The digest: the hash that names a state, built over the hashes of the pieces a snapshot is served in."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from blake3 import blake3

from prime_p2p.allreduce.codec import Float32
from prime_p2p.outer.parallel import in_threads

PIECE = 4 * 2**20
"""Bytes of a piece; the last piece of each array may be shorter."""

_ELEMENTS = PIECE // 4
_DOMAIN = b"prime-p2p outer state v1"
_NUMBERS = struct.Struct("<QQQ")


def state_digest(step: int, tokens: int, anchor: Float32, momentum: Float32, threads: int = 1) -> bytes:
    """The digest (32 bytes) of the state after ``step`` outer steps with ``tokens`` tokens in all; arrays are [n]."""
    return digest_of_pieces(step, tokens, len(anchor), pieces(anchor, momentum, threads))


def digest_of_pieces(step: int, tokens: int, n: int, hashes: Sequence[bytes]) -> bytes:
    """The digest of a state with these piece hashes: a list of hashes can be checked before any piece is there.

    blake3 of a domain tag, step, tokens and n as little-endian 64-bit numbers, and the hashes in order.
    """
    return blake3(_DOMAIN + _NUMBERS.pack(step, tokens, n) + b"".join(hashes)).digest()


def pieces(anchor: Float32, momentum: Float32, threads: int = 1) -> list[bytes]:
    """blake3 (32 bytes) of every piece of the anchor, then of every piece of the momentum, as little-endian float32."""
    views = [array[i : i + _ELEMENTS] for array in (anchor, momentum) for i in range(0, len(array), _ELEMENTS)]
    return in_threads(lambda view: blake3(view.view(np.uint8).data).digest(), views, threads)
