"""Which pseudo-gradients are fit to be averaged, and what a peer says of those that are not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prime_p2p.allreduce import codec
from prime_p2p.allreduce.codec import BLOCK, BlockVector
from prime_p2p.training.flat import FlatParameters
from prime_p2p.training.pseudo_gradient import ENOUGH, REMEMBERED, PseudoGradient, UnfitPseudoGradient, UsualSize

STEPS = 50


def usual(*sizes: float) -> UsualSize:
    known = UsualSize()
    for size in sizes:
        known.remember(size, STEPS)
    return known


# ---- what is usual


def test_a_size_is_compared_with_the_median_of_those_before() -> None:
    assert usual(1.0, 2.0, 3.0, 400.0).growth(25.0, STEPS) == 10.0
    assert usual(2.0, 2.0, 2.0, 2.0, 2.0).growth(1.0, STEPS) == 0.5


def test_a_peer_that_has_made_few_rounds_knows_nothing_unusual() -> None:
    known = UsualSize()
    for _ in range(ENOUGH):
        assert known.growth(1e30, STEPS) == 0.0
        known.remember(1.0, STEPS)
    assert known.growth(30.0, STEPS) == 30.0


def test_slow_growth_is_never_unusual_however_far_it_leads() -> None:
    known = UsualSize()
    for round_ in range(300):
        size = 1e-6 * 1.2**round_
        assert known.growth(size, STEPS) < 10
        known.remember(size, STEPS)
    assert size > 1e15


def test_a_rate_that_warms_up_over_many_rounds_is_not_unusual() -> None:
    known = UsualSize()
    for round_ in range(300):
        size = 1e-3 * (round_ + 1)
        assert known.growth(size, STEPS) < 10
        known.remember(size, STEPS)


def test_only_the_last_sizes_count() -> None:
    known = usual(*[1.0] * REMEMBERED, *[100.0] * REMEMBERED)
    assert known.growth(200.0, STEPS) == 2.0


@pytest.mark.parametrize("nothing", [0.0, float("inf")])
def test_what_tells_nothing_is_not_remembered(nothing: float) -> None:
    assert usual(*[nothing] * REMEMBERED).growth(1.0, STEPS) == 0.0
    assert usual(1.0, 1.0, 1.0, 1.0, *[nothing] * REMEMBERED).growth(2.0, STEPS) == 2.0


def test_a_pseudo_gradient_of_more_inner_steps_may_be_larger_in_proportion() -> None:
    """A peer that missed 20 rounds brings the inner steps of all of them."""
    known = usual(1.0, 1.0, 1.0, 1.0)
    assert known.growth(20.0, 20 * STEPS) == 1.0
    hurried = UsualSize()
    for _ in range(ENOUGH):
        hurried.remember(1.0, 1)
    assert hurried.growth(50.0, 50) == 1.0


def test_one_of_fewer_inner_steps_may_be_as_large_as_any() -> None:
    """Parameters that move at random go a tenth as far in a hundredth of the steps."""
    assert usual(1.0, 1.0, 1.0, 1.0).growth(9.0, 1) == 9.0


# ---- one peer's own


class Model(torch.nn.Module):
    """Parameters over several chunks, the smallest one in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(codec.CHUNK + 100))
        self.small = torch.nn.Parameter(torch.zeros(3, 7))
        self.last = torch.nn.Parameter(torch.zeros(2, BLOCK))


class Trainer:
    """A model whose parameters are moved from an anchor by hand."""

    def __init__(self, factor: float = 10.0, bits: int = 8) -> None:
        self.model = Model()
        self.parameters = FlatParameters(self.model)
        self.anchor = np.random.default_rng(0).normal(size=self.parameters.n).astype(np.float32)
        self.pseudo_gradient = PseudoGradient(self.parameters, factor, bits)

    def move(self, **by: float) -> None:
        """Stand at the anchor, but for these parameters."""
        self.parameters.write(0, self.anchor)
        with torch.no_grad():
            for name, distance in by.items():
                self.model.get_parameter(name).sub_(distance)

    def take(self, **by: float) -> None:
        self.move(**by)
        self.pseudo_gradient.take(self.anchor, STEPS)

    def contribute(self, **by: float) -> None:
        self.take(**by)
        self.pseudo_gradient.contributed()


@pytest.mark.parametrize("bits", [8, 4])
def test_the_blocks_are_those_of_the_anchor_minus_the_parameters(bits: int) -> None:
    trainer = Trainer(bits=bits)
    trainer.take(first=0.25, small=2.0, last=-0.5)
    whole = BlockVector.empty(trainer.parameters.n, bits)
    codec.quantise(trainer.anchor - trainer.parameters.to_numpy(), whole)
    assert trainer.pseudo_gradient.blocks.digest() == whole.digest()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e38])
def test_one_that_is_not_finite_names_the_parameter(bad: float) -> None:
    trainer = Trainer()
    trainer.move(first=0.1)
    with torch.no_grad():
        trainer.model.small[1, 2] = bad
    with pytest.raises(UnfitPseudoGradient, match=r"^that of small is not finite$"):
        trainer.pseudo_gradient.take(trainer.anchor, STEPS)


def test_one_that_explodes_names_the_factor_and_the_parameter_with_most_of_it() -> None:
    trainer = Trainer()
    for _ in range(ENOUGH):
        trainer.contribute(first=0.01, small=0.01, last=0.01)
    with pytest.raises(UnfitPseudoGradient) as error:
        trainer.take(first=0.01, small=50.0, last=0.5)
    # sqrt((21 * 50² + 2048 * 0.5²) / n) / 0.01, of which 21 * 50² are 99 %
    size = np.sqrt((21 * 50.0**2 + 2048 * 0.5**2) / trainer.parameters.n) / 0.01
    said = f"it is {size:.3g} times its usual size (explosion_factor is 10), 99% of it in small"
    assert str(error.value) == said
    trainer.take(first=0.09, small=0.09, last=0.09)


def test_one_that_was_not_contributed_does_not_change_what_is_usual() -> None:
    trainer = Trainer()
    for _ in range(ENOUGH):
        trainer.contribute(first=0.01, last=0.01)
    for _ in range(REMEMBERED):
        with pytest.raises(UnfitPseudoGradient):
            trainer.take(first=1.0, last=1.0)
        trainer.take(first=0.09, last=0.09)
    with pytest.raises(UnfitPseudoGradient):
        trainer.take(first=0.11, last=0.11)


def test_a_factor_of_zero_lets_any_finite_one_pass() -> None:
    trainer = Trainer(factor=0.0)
    for size in (*[0.01] * ENOUGH, 1e6):
        trainer.contribute(first=size, last=size)


def test_one_whose_squares_do_not_fit_into_float32_explodes_too() -> None:
    trainer = Trainer()
    for _ in range(ENOUGH):
        trainer.contribute(first=0.01)
    with pytest.raises(UnfitPseudoGradient, match=r"100% of it in last"):
        trainer.take(last=1e30)
