"""The mean of a group's vectors: found in one process, it has the bytes that the butterfly gives."""

from __future__ import annotations

import numpy as np
import pytest
from test_butterfly import random_vectors, reduce

from prime_p2p.allreduce.codec import BlockVector, quantise
from prime_p2p.allreduce.mean import average


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(
    ("n", "weights"), [(700_001, [3, 1, 4, 1, 5]), (1025, [7, 7, 7]), (5000, [0, 1, 2]), (900, [5])]
)
def test_the_mean_has_the_bytes_of_the_butterfly_among_unequal_links(n: int, weights: list[int], bits: int) -> None:
    vectors = random_vectors(len(weights), n, seed=n)
    loopback, _ = reduce(vectors, weights, [float(place + 1) for place in range(len(weights))], bits)
    taken = [BlockVector.empty(n, bits) for _ in vectors]
    for vector, blocks in zip(vectors, taken, strict=True):
        quantise(vector, blocks)
    trained = [(blocks, weight / sum(weights)) for blocks, weight in zip(taken, weights, strict=True) if weight]
    mean = BlockVector.empty(n, bits)
    average(*zip(*trained, strict=True), mean)
    assert mean.digest() == loopback.updates["peer-0"].digest()


def test_the_mean_of_one_is_its_own_bytes() -> None:
    one, mean = BlockVector.empty(3000), BlockVector.empty(3000)
    quantise(np.random.default_rng(1).standard_normal(3000).astype(np.float32), one)
    average([one], [1.0], mean)
    assert mean.digest() == one.digest()
