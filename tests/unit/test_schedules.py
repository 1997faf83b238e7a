"""Rates by step: golden values, and the same bits everywhere where bytes depend on them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_p2p.recipe import InnerRecipe, OuterRecipe
from prime_p2p.schedules import inner_rate, outer_rate

CONSTANT = InnerRecipe(learning_rate=0.5, warmup_steps=4, batch_size=1)
COSINE = InnerRecipe(learning_rate=0.5, warmup_steps=4, schedule="cosine", total_steps=104, batch_size=1)
WSD = InnerRecipe(
    learning_rate=0.5, warmup_steps=4, schedule="wsd", total_steps=104, decay_steps=16, floor=0.0, batch_size=1
)


@pytest.mark.parametrize("inner", [CONSTANT, COSINE, WSD])
def test_the_rate_warms_up_in_equal_steps_from_the_first(inner: InnerRecipe) -> None:
    assert [inner_rate(inner, step) for step in range(5)] == [0.125, 0.25, 0.375, 0.5, 0.5]


def test_without_warm_up_the_first_step_has_the_whole_rate() -> None:
    assert inner_rate(InnerRecipe(learning_rate=0.5, batch_size=1), 0) == 0.5


def test_a_constant_rate_stays() -> None:
    assert inner_rate(CONSTANT, 10**9) == 0.5


@pytest.mark.parametrize("floor", [0.0, 0.1, 1.0])
def test_a_cosine_falls_to_its_floor_and_stays_there(floor: float) -> None:
    inner = COSINE.model_copy(update={"floor": floor})
    assert inner_rate(inner, 29) == pytest.approx(0.5 * (floor + (1 - floor) * (1 + math.sqrt(0.5)) / 2))
    assert inner_rate(inner, 54) == pytest.approx(0.5 * (1 + floor) / 2)
    assert inner_rate(inner, 104) == inner_rate(inner, 10**9) == 0.5 * floor


def test_wsd_stays_and_falls_by_a_square_root_at_the_end() -> None:
    assert [inner_rate(WSD, step) for step in (4, 50, 88)] == [0.5] * 3
    assert [inner_rate(WSD, step) for step in (89, 92, 97, 104, 10**9)] == [0.375, 0.25, 0.125, 0.0, 0.0]


@pytest.mark.parametrize("inner", [COSINE, WSD])
@given(step=st.integers(4, 200))
def test_a_schedule_never_rises(inner: InnerRecipe, step: int) -> None:
    assert 0 <= inner_rate(inner, step + 1) <= inner_rate(inner, step) <= 0.5


def outer(**values: object) -> OuterRecipe:
    return OuterRecipe.model_validate(values)


def test_an_outer_rate_is_constant_unless_a_schedule_is_given() -> None:
    assert [outer_rate(outer(), step) for step in (0, 10**9)] == [0.7, 0.7]
    assert [outer_rate(outer(optimizer="average"), step) for step in (0, 10**9)] == [1.0, 1.0]


def test_a_linear_outer_rate_falls_in_equal_steps_to_its_floor() -> None:
    linear = outer(learning_rate=1.0, schedule="linear", total_steps=4, floor=0.5)
    assert [outer_rate(linear, step) for step in (0, 1, 2, 3, 4, 5)] == [1.0, 0.875, 0.75, 0.625, 0.5, 0.5]


GOLDEN = [
    "0x1.6666666666666p-1",
    "0x1.5e81a3196cdf9p-1",
    "0x1.4799279f8d377p-1",
    "0x1.23eb026863f07p-1",
    "0x1.edeaa12a9f8dap-2",
    "0x1.8a3d70a3d70a4p-2",
    "0x1.2690401d0e86dp-2",
    "0x1.9949b8edcc674p-3",
    "0x1.0a912411274b2p-3",
    "0x1.5dde6c5351557p-4",
    "0x1.1eb851eb851ebp-4",
]


def test_a_cosine_outer_rate_has_the_same_bits_everywhere() -> None:
    """Golden bits: peers whose rates differ in the last one would hold other bytes."""
    cosine = outer(schedule="cosine", total_steps=10, floor=0.1)
    assert [outer_rate(cosine, step).hex() for step in range(11)] == GOLDEN


@given(st.integers(0, 1000))
def test_a_cosine_outer_rate_is_a_cosine(step: int) -> None:
    cosine = outer(learning_rate=1.0, schedule="cosine", total_steps=1000, floor=0.0)
    assert outer_rate(cosine, step) == pytest.approx((1 + math.cos(math.pi * step / 1000)) / 2, abs=1e-15)
