"""The outer optimizer: the same numbers as torch, the same bytes however it is run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prime_p2p.allreduce import codec
from prime_p2p.allreduce.codec import BLOCK, BlockVector, Float32, dequantise, quantise
from prime_p2p.outer import nesterov
from prime_p2p.outer.nesterov import OuterOptimizer, step

N = 5 * BLOCK + 321


def normal(seed: int, n: int = N) -> Float32:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def update(seed: int, n: int = N) -> BlockVector:
    vector = BlockVector.empty(n)
    quantise(normal(seed, n) * np.float32(0.01), vector)
    return vector


def restored(vector: BlockVector) -> Float32:
    out = np.empty(vector.n, np.float32)
    dequantise(vector, out)
    return out


def after_steps(optimizer: OuterOptimizer, n: int = N, threads: int = 1) -> tuple[bytes, bytes]:
    anchor, momentum = normal(0, n), np.zeros(n, np.float32)
    for seed in (1, 2, 3):
        step(anchor, momentum, update(seed, n), optimizer, threads)
    return anchor.tobytes(), momentum.tobytes()


@pytest.mark.parametrize(
    "optimizer",
    [
        OuterOptimizer(),
        OuterOptimizer(learning_rate=0.4, momentum=0.95),
        OuterOptimizer(learning_rate=1.0, momentum=0.8, nesterov=False),
        OuterOptimizer(learning_rate=1.0, momentum=0.0, nesterov=False),
    ],
)
def test_several_steps_equal_those_of_torch(optimizer: OuterOptimizer) -> None:
    anchor, momentum = normal(0), np.zeros(N, np.float32)
    parameter = torch.nn.Parameter(torch.from_numpy(anchor.copy()))
    reference = torch.optim.SGD(
        [parameter], lr=optimizer.learning_rate, momentum=optimizer.momentum, nesterov=optimizer.nesterov
    )
    for seed in range(1, 7):
        gradient = update(seed)
        step(anchor, momentum, gradient, optimizer)
        parameter.grad = torch.from_numpy(restored(gradient))
        reference.step()
        assert_close(anchor, parameter.detach().numpy())
        if optimizer.momentum:
            assert_close(momentum, reference.state[parameter]["momentum_buffer"].numpy())


def assert_close(ours: Float32, theirs: Float32) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6 * float(np.abs(theirs).max()))


def test_each_multiply_and_add_is_rounded_by_itself() -> None:
    anchor, momentum, gradient = normal(0), normal(1), update(2)
    g, rate, decay = restored(gradient), np.float32(0.7), np.float32(0.9)
    m = momentum * decay
    m = m + g
    move = m * decay
    move = move + g
    move = move * rate
    expected = anchor - move
    step(anchor, momentum, gradient, OuterOptimizer())
    assert momentum.tobytes() == m.tobytes()
    assert anchor.tobytes() == expected.tobytes()


@pytest.mark.parametrize("nesterov", [True, False])
def test_a_first_update_in_the_direction_of_the_pseudo_gradient_moves_the_anchor_against_it(nesterov: bool) -> None:
    anchor, momentum = np.zeros(BLOCK, np.float32), np.zeros(BLOCK, np.float32)
    gradient = BlockVector.empty(BLOCK)
    quantise(np.ones(BLOCK, np.float32), gradient)
    step(anchor, momentum, gradient, OuterOptimizer(learning_rate=0.5, momentum=0.5, nesterov=nesterov))
    assert anchor == pytest.approx(-0.75 if nesterov else -0.5, rel=1e-6)
    assert momentum == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("n", [0, 1, BLOCK, N])
@pytest.mark.parametrize("threads", [2, 3])
def test_the_number_of_threads_changes_no_bytes(n: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = after_steps(OuterOptimizer(), n)
    monkeypatch.setattr(nesterov, "SPAN", 2 * BLOCK)
    assert after_steps(OuterOptimizer(), n, threads) == expected


@pytest.mark.parametrize("blocks", [1, 2, 7])
def test_the_chunk_size_changes_no_bytes(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = after_steps(OuterOptimizer())
    for module in (codec, nesterov):
        monkeypatch.setattr(module, "CHUNK", blocks * BLOCK)
    assert after_steps(OuterOptimizer()) == expected


@pytest.mark.parametrize(("anchor", "momentum"), [(N - 1, N), (N, N + 1), (N + 1, N + 1)])
def test_an_update_of_another_length_is_refused_and_changes_nothing(anchor: int, momentum: int) -> None:
    arrays = normal(0, anchor), normal(1, momentum)
    before = [array.tobytes() for array in arrays]
    with pytest.raises(ValueError, match="elements"):
        step(*arrays, update(2), OuterOptimizer())
    assert [array.tobytes() for array in arrays] == before


def test_an_update_in_float32_is_applied_with_the_arithmetic_of_one_in_blocks() -> None:
    optimizer = OuterOptimizer()
    anchor, momentum = normal(0), np.zeros(N, np.float32)
    for seed in (1, 2, 3):
        nesterov.move(anchor, momentum, restored(update(seed)), optimizer, np.empty(N, np.float32))
    assert (anchor.tobytes(), momentum.tobytes()) == after_steps(optimizer)
