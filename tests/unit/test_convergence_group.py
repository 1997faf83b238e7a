"""Peers in one process: the bytes that a swarm would come to."""

from __future__ import annotations

import math

import numpy as np
import pytest
from test_butterfly import reduce

from prime_p2p.outer.nesterov import OuterOptimizer
from prime_p2p.outer.state import OuterState
from prime_p2p.recipe import Recipe
from scripts.convergence.arms import Setting, diloco
from scripts.convergence.group import Diverged, Group

TEXT = np.random.default_rng(1).integers(97, 123, 5000).astype(np.uint8)
NAMES = ["peer-1", "peer-2", "peer-3"]


def recipe() -> Recipe:
    small = ["hidden_size=8", "intermediate_size=16", "layers=1", "heads=2", "kv_heads=2", "context=8"]
    return Setting(diloco(), 0.01, 1).recipe().with_overrides([f"model.{override}" for override in small])


@pytest.mark.parametrize(("codec", "bits"), [("int8", 8), ("int4", 4)])
def test_exchanges_of_a_group_have_the_bytes_of_the_butterfly_and_the_outer_step(codec: str, bits: int) -> None:
    group = Group(recipe(), NAMES, TEXT, codec)
    state = OuterState.initial(group.state.anchor)
    for number, steps in enumerate((2, 3)):
        group.train(2 * number, steps)
        group.members[number].train(2 * number + steps, 1)  # peers need not have trained on as much
        taken = [state.anchor - member.parameters.to_numpy() for member in group.members]
        weights = [member.tokens for member in group.members]
        loopback, _ = reduce(taken, weights, [1.0, 2.0, 3.0], bits)
        state.apply(loopback.updates["peer-0"], sum(weights), OuterOptimizer(0.7, 0.6))
        group.exchange(group.members)
        assert group.state.digest == state.digest
        assert all(member.parameters.equal(state.anchor) for member in group.members)


def test_without_a_codec_the_anchor_moves_as_with_one_but_for_rounding() -> None:
    exact, coarse = (Group(recipe(), NAMES, TEXT, codec) for codec in ("fp32", "int8"))
    before = exact.state.anchor.copy()
    for group in (exact, coarse):
        group.train(0, 3)
        group.exchange(group.members)
    moved = exact.state.anchor - before
    assert 0 < np.abs(coarse.state.anchor - exact.state.anchor).max() < 0.02 * np.abs(moved).max()


def test_a_member_that_misses_an_exchange_keeps_its_progress_on_top_of_the_others() -> None:
    group = Group(recipe(), NAMES, TEXT, "int8")
    group.train(0, 2)
    absent = group.members[2]
    progress, tokens = absent.parameters.to_numpy() - group.state.anchor, absent.tokens
    group.exchange(group.members[:2])
    np.testing.assert_allclose(absent.parameters.to_numpy(), group.state.anchor + progress, atol=1e-6)
    assert (absent.tokens, group.members[0].tokens) == (tokens, 0)


def test_what_was_trained_before_a_missed_exchange_may_stay_where_it_was_or_be_dropped() -> None:
    still, dropped = (Group(recipe(), NAMES, TEXT, "int8") for _ in range(2))
    for group in (still, dropped):
        group.train(0, 2)
    before = still.members[2].parameters.to_numpy()
    still.exchange(still.members[:2], "still")
    dropped.exchange(dropped.members[:2], "dropped")
    assert still.members[2].parameters.equal(before)
    assert dropped.members[2].parameters.equal(dropped.state.anchor)
    assert (still.members[2].steps, dropped.members[2].steps) == (2, 0)


def test_an_exchange_that_nobody_takes_part_in_changes_nothing() -> None:
    group = Group(recipe(), NAMES, TEXT, "int8")
    group.train(0, 1)
    digest, parameters = group.state.digest, group.members[0].parameters.to_numpy()
    group.exchange([])
    assert group.state.digest == digest
    assert group.members[0].parameters.equal(parameters)


def test_who_joins_begins_from_the_anchor_and_who_leaves_is_in_no_mean() -> None:
    group = Group(recipe(), NAMES, TEXT, "int8")
    group.train(0, 2)
    group.exchange(group.members)
    group.leave("peer-1")
    group.join("peer-4")
    assert [member.name for member in group.members] == ["peer-2", "peer-3", "peer-4"]
    assert group.members[-1].parameters.equal(group.state.anchor)


def test_a_loss_that_is_not_finite_ends_the_run() -> None:
    group = Group(recipe(), NAMES, TEXT, "int8")
    group.members[0].parameters.write(0, np.full(group.members[0].parameters.n, math.nan, np.float32))
    with pytest.raises(Diverged, match="peer-1"):
        group.train(0, 1)
