"""The mean of a group's vectors as the owner of a part finds it: added up in the order of the group, quantised once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prime_p2p.allreduce import codec
from prime_p2p.allreduce.codec import BlockVector


def average(vectors: Sequence[BlockVector], coefficients: Sequence[float], out: BlockVector) -> None:
    """Write the sum of coefficient times vector into ``out``; all have the same length and bits.

    The vectors may be the same range of blocks of longer ones: cut anywhere, or not at all, the bytes are the same.
    """
    if len(vectors) == 1:  # a mean of one: its bytes, not a second rounding of them
        np.copyto(out.values, vectors[0].values)
        np.copyto(out.scales, vectors[0].scales)
        return
    codec.average(vectors, coefficients, out)
