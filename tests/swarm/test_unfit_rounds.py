"""A peer whose pseudo-gradient is not fit to be averaged, among real peers: it alone bears the consequences."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from prime_p2p import DiLoCo, OuterOptimizer, RoundPolicy, Swarm, SwarmOptions
from prime_p2p.allreduce import codec
from prime_p2p.allreduce.codec import BlockVector, Float32
from prime_p2p.diloco import OuterStep
from prime_p2p.errors import PrimeError
from prime_p2p.training.pseudo_gradient import ENOUGH

pytestmark = pytest.mark.timeout(180)

POLICY = RoundPolicy(patience=30.0, grace=10.0, stall_timeout=10.0)
AT_ONCE = 15.0  # seconds: far above what a round takes, far below patience
PLAIN = OuterOptimizer(learning_rate=1.0, momentum=0.0, nesterov=False)
N = 3000


class Trainer:
    """A peer whose inner steps move its parameters by what the test says."""

    def __init__(self, swarm: Swarm) -> None:
        self.model = torch.nn.Linear(N, 1, bias=False)
        torch.nn.init.zeros_(self.model.weight)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.diloco = DiLoCo(self.model, self.optimizer, swarm, inner_steps=1, outer=PLAIN)
        self.gathering = threading.Event()
        swarm.on_phase = lambda phase, size: self.gathering.set() if phase == "gathering" else None

    @property
    def anchor(self) -> Float32:
        return self.diloco.state.anchor

    def step(self, gradient: float = 1.0) -> OuterStep:
        """One inner step that moves everything by a hundredth of ``gradient``, and the outer step after it."""
        self.optimizer.state[self.model.weight] = {"step": torch.tensor(1.0)}
        with torch.no_grad():
            self.model.weight -= 0.01 * gradient
        self.gathering.clear()
        outcome = self.diloco.step(tokens=10)
        assert outcome is not None
        return outcome


@contextmanager
def two_trainers() -> Iterator[tuple[Trainer, Trainer]]:
    with (
        Swarm("unfit", (), SwarmOptions(policy=POLICY)) as one,
        Swarm("unfit", one.addresses[:1], SwarmOptions(policy=POLICY)) as other,
    ):
        trainers = Trainer(one), Trainer(other)
        assert one.wait_for_peers(1, AT_ONCE)
        assert other.wait_for_peers(1, AT_ONCE)
        yield trainers


def together(*trainers: Trainer) -> list[OuterStep]:
    """All make their next outer step at the same time."""
    with ThreadPoolExecutor(len(trainers)) as pool:
        return list(pool.map(Trainer.step, trainers))


def sizes(outcomes: list[OuterStep]) -> list[int]:
    return [0 if outcome.round.group is None else len(outcome.round.group.members) for outcome in outcomes]


def sound_step(trainer: Trainer) -> None:
    """An outer step that this trainer makes alone, at once and with its own bytes only."""
    moved = np.full(N, 0.01, np.float32)
    mine, expected = BlockVector.empty(N), np.empty(N, np.float32)
    before = trainer.anchor.copy()
    began = time.monotonic()
    outcome = trainer.step()
    assert sizes([outcome]) == [1]
    assert outcome.round.traffic.received == 0
    assert time.monotonic() - began < AT_ONCE
    codec.quantise(moved, mine)
    codec.dequantise(mine, expected)
    np.testing.assert_allclose(trainer.anchor, before - expected, rtol=1e-4)


def unfit_step(trainer: Trainer, gradient: float) -> OuterStep:
    outcome = trainer.step(gradient)
    assert not outcome.committed
    assert outcome.tokens == 0
    assert np.array_equal(trainer.diloco.parameters.to_numpy(), trainer.anchor)
    assert not trainer.optimizer.state
    return outcome


def take_part_again(sound: Trainer, unfit: Trainer) -> None:
    """The peer that sat out comes to the state of the other and is ready in time: they make the next step together."""
    assert unfit.diloco.catch_up(ask_everyone=True)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(unfit.step)
        assert unfit.gathering.wait(AT_ONCE)
        outcomes = [sound.step(), first.result(AT_ONCE)]
    assert sizes(outcomes) == [2, 2]
    assert np.array_equal(sound.anchor, unfit.anchor)


@pytest.mark.parametrize(
    ("gradient", "reason"), [(1e6, "times its usual size"), (float("nan"), "that of weight is not finite")]
)
def test_it_sits_out_and_the_other_goes_on_without_it_at_once_and_they_meet_again(gradient: float, reason: str) -> None:
    with two_trainers() as (sound, unfit):
        for _ in range(ENOUGH):
            assert sizes(together(sound, unfit)) == [2, 2]

        assert reason in unfit_step(unfit, gradient).round.reason  # before the other is ready
        sound_step(sound)
        take_part_again(sound, unfit)

        with ThreadPoolExecutor(1) as pool:  # while the other waits for it
            waiting = pool.submit(sound_step, sound)
            assert sound.gathering.wait(AT_ONCE)
            assert reason in unfit_step(unfit, gradient).round.reason
            waiting.result(AT_ONCE)
        take_part_again(sound, unfit)
        assert np.abs(sound.anchor).max() < 1.0


@pytest.mark.parametrize(
    ("gradient", "reason"), [(1e6, "times its usual size"), (float("nan"), "that of weight is not finite")]
)
def test_three_in_a_row_stop_it_with_advice_and_a_clean_state(gradient: float, reason: str) -> None:
    with two_trainers() as (sound, unfit):
        for _ in range(ENOUGH):
            together(sound, unfit)
        for _ in range(2):
            unfit_step(unfit, gradient)
            sound_step(sound)
        with pytest.raises(PrimeError, match=f"3 times in a row.*{reason}.*lower the inner learning rate"):
            unfit.step(gradient)
        sound_step(sound)
        saved = unfit.diloco.checkpoint(0)
        assert np.array_equal(saved.local.parameters, saved.outer.anchor)
        assert np.abs(saved.outer.anchor).max() < 1.0


def test_two_that_are_not_in_a_row_do_not_stop_it() -> None:
    with Swarm("alone", (), SwarmOptions(policy=POLICY)) as swarm:
        trainer = Trainer(swarm)
        steps: list[Callable[[], object]] = [trainer.step] * ENOUGH
        steps += [lambda: unfit_step(trainer, float("inf")), lambda: unfit_step(trainer, 1e6), trainer.step] * 2
        for step in steps:
            step()
        assert trainer.diloco.state.step == ENOUGH + 2
