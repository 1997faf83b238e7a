"""A peer that has nobody else: it learns from its own gradient, and does not complain about it."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import network

from prime_p2p import DiLoCo, DiLoCoOptions, OuterOptimizer, Swarm
from prime_p2p.allreduce import codec
from prime_p2p.allreduce.codec import BITS, BlockVector, Float32

pytestmark = pytest.mark.timeout(240)

INNER_STEPS, OUTER_STEPS = 5, 20


def new_model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 80), torch.nn.Tanh(), torch.nn.Linear(80, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def loss_of(model: torch.nn.Module, seed: int, size: int = 32) -> torch.Tensor:
    inputs = torch.randn(size, 16, generator=torch.Generator().manual_seed(seed))
    return (model(inputs) - inputs.sin().sum(dim=1, keepdim=True)).square().mean()


def inner_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    optimizer.zero_grad()
    loss_of(model, seed).backward()
    optimizer.step()


def flat(model: torch.nn.Module) -> Float32:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).numpy().copy()


def by_hand(outer: OuterOptimizer, codec_name: str) -> Float32:
    """The anchor that the plain arithmetic leads to, with the pseudo-gradient as blocks in between."""
    model, optimizer = new_model()
    anchor = torch.nn.Parameter(torch.from_numpy(flat(model)))
    nesterov = torch.optim.SGD([anchor], outer.learning_rate, outer.momentum, nesterov=True)
    blocks, sent = BlockVector.empty(len(anchor), BITS[codec_name]), np.empty(len(anchor), np.float32)
    for step in range(INNER_STEPS * OUTER_STEPS):
        inner_step(model, optimizer, step)
        if (step + 1) % INNER_STEPS == 0:
            codec.quantise(anchor.detach().numpy() - flat(model), blocks)
            codec.dequantise(blocks, sent)
            anchor.grad = torch.from_numpy(sent.copy())
            nesterov.step()
            torch.nn.utils.vector_to_parameters(anchor.detach().clone(), model.parameters())
    return anchor.detach().numpy()


@pytest.mark.parametrize("codec_name", list(BITS))
def test_a_lone_peer_learns_and_its_anchor_is_what_the_plain_arithmetic_gives(codec_name: str) -> None:
    outer = OuterOptimizer()
    model, optimizer = new_model()
    before = loss_of(model, seed=-1, size=1000).item()
    with Swarm("alone") as swarm:
        diloco = DiLoCo(model, optimizer, swarm, INNER_STEPS, outer, DiLoCoOptions(codec=codec_name))
        for step in range(INNER_STEPS * OUTER_STEPS):
            inner_step(model, optimizer, step)
            outcome = diloco.step(tokens=32)
            if outcome is not None:
                assert outcome.round.group is not None
                assert outcome.round.group.peer_ids == (swarm.peer_id,)
        anchor = diloco.state.anchor
    expected = by_hand(outer, codec_name)
    assert diloco.state.step == OUTER_STEPS
    assert loss_of(model, seed=-1, size=1000).item() < 0.7 * before
    np.testing.assert_allclose(anchor, expected, rtol=1e-5, atol=1e-6)
    assert np.array_equal(flat(model), anchor)


def test_a_peer_whose_companions_are_gone_trains_on_and_says_nothing_of_it_round_after_round(tmp_path: Path) -> None:
    with network(tmp_path) as (bootstrap, _, start):
        settings = {"round.start_with": 3, "round.inner_steps": 2, "eval.every": 0, "checkpoint.every": 0}
        stays, *others = (start(name, **settings) for name in ("one", "two", "three"))
        for peer in (stays, *others):
            peer.outer_step(lambda step: len(step["group"]) == 3)
        for process in (bootstrap, *others):
            process.signal(signal.SIGKILL)
        alone = stays.outer_step(lambda step: len(step["group"]) == 1)
        stays.outer_step(lambda step: step["outer_step"] >= alone["outer_step"] + 100)
        said = [line for line in stays.lines if '"log"' in line] + stays.stderr.splitlines()
        assert len(said) <= 3, said


def test_to_let_go_of_a_swarm_that_is_closed_is_nothing() -> None:
    with Swarm("closed") as swarm:
        swarm.hold_no_more()
    swarm.hold_no_more()
