"""What a swarm computes, against the same arithmetic in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from prime_p2p import DiLoCo, OuterOptimizer, RoundPolicy, Swarm, SwarmOptions
from prime_p2p.diloco import OuterStep

pytestmark = pytest.mark.timeout(180)

PEERS = 3
FEATURES, HIDDEN, BATCH = 24, 96, 8
POLICY = RoundPolicy(patience=60.0, grace=5.0, stall_timeout=10.0)
PLAIN = OuterOptimizer(learning_rate=1.0, momentum=0.0, nesterov=False)


def new_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))


def loss_of(model: torch.nn.Module, seed: int) -> torch.Tensor:
    """The loss on a batch that the seed names."""
    inputs = torch.randn(BATCH, FEATURES, generator=torch.Generator().manual_seed(seed))
    return (model(inputs) - inputs.sin().sum(dim=1, keepdim=True)).square().mean()


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


Run = tuple[torch.Tensor, list[OuterStep]]


def train(swarm: Swarm, outer: OuterOptimizer, inner_steps: int, outer_steps: int, seed: Callable[[int], int]) -> Run:
    """Plain SGD inside; returns the parameters at the end and the outer steps on the way."""
    with LOCK:
        model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    diloco = DiLoCo(model, optimizer, swarm, inner_steps, outer)
    assert swarm.wait_for_peers(len(ADDRESSES) - 1, timeout=60)
    made = []
    step = 0
    while len(made) < outer_steps:
        optimizer.zero_grad()
        loss_of(model, seed(step)).backward()
        optimizer.step()
        step += 1
        outer_step = diloco.step(tokens=BATCH)
        if outer_step is not None:
            made.append(outer_step)
    return flat(model), made


LOCK = threading.Lock()  # torch.manual_seed is global
ADDRESSES: list[str] = []


def swarm_of(peers: int, outer: OuterOptimizer, inner_steps: int, outer_steps: int, same_data: bool) -> list[Run]:
    """Train ``peers`` real peers, each on its own batches or all on the same."""
    swarms: list[Swarm] = []
    ADDRESSES.clear()
    try:
        for _ in range(peers):
            swarms.append(Swarm("exact", ADDRESSES[:1], SwarmOptions(policy=POLICY)))
            ADDRESSES.append(swarms[-1].addresses[0])
        with ThreadPoolExecutor(peers) as pool:

            def one(index: int) -> Run:
                return train(
                    swarms[index], outer, inner_steps, outer_steps, lambda s: s if same_data else s * peers + index
                )

            return list(pool.map(one, range(peers)))
    finally:
        for swarm in swarms:
            swarm.close()


def check_groups(runs: list[Run], peers: int) -> None:
    """All made the same outer steps, each with everybody in it."""
    for steps in zip(*(run[1] for run in runs), strict=True):
        assert len({step.digest for step in steps}) == 1
        for step in steps:
            assert step.round.group is not None
            assert len(step.round.group.members) == peers
            assert step.round.attempts == 1


def test_one_inner_step_of_sgd_on_every_peer_is_one_step_on_the_mean_gradient() -> None:
    steps = 6
    runs = swarm_of(PEERS, PLAIN, inner_steps=1, outer_steps=steps, same_data=False)
    check_groups(runs, PEERS)
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    moved = torch.zeros_like(flat(model))
    for step in range(steps):
        optimizer.zero_grad()
        sum(loss_of(model, step * PEERS + peer) for peer in range(PEERS)).div(PEERS).backward()  # type: ignore[union-attr]
        before = flat(model)
        optimizer.step()
        moved += (flat(model) - before).abs()
    bound = moved.max() / 127 * 2  # a level of the codec for the gradients and one for their mean
    for parameters, _ in runs:
        assert (parameters - flat(model)).abs().max() <= bound
        assert torch.equal(parameters, runs[0][0])


def test_peers_with_the_same_data_are_one_peer() -> None:
    outer = OuterOptimizer()
    together = swarm_of(PEERS, outer, inner_steps=5, outer_steps=4, same_data=True)
    check_groups(together, PEERS)
    alone = swarm_of(1, outer, inner_steps=5, outer_steps=4, same_data=True)
    check_groups(alone, 1)
    for parameters, _ in together:
        torch.testing.assert_close(parameters, alone[0][0], rtol=1e-5, atol=1e-6)
