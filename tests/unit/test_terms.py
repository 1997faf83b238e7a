"""What holds at which outer step of a run."""

from __future__ import annotations

import threading

import pytest
from public_runs import TINY

from prime_p2p.errors import BadInput
from prime_p2p.outer.nesterov import OuterOptimizer
from prime_p2p.recipe import Recipe
from prime_p2p.terms import Change, Terms, differences, recipe_with


@pytest.fixture
def recipe() -> Recipe:
    return Recipe.load(TINY)


def test_a_change_holds_from_its_outer_step_on(recipe: Recipe) -> None:
    terms = Terms(recipe, [Change(5, {"inner.learning_rate": 0.5}), Change(9, {"outer.momentum": 0.1})])
    assert [terms.recipe_at(step).inner.learning_rate for step in (0, 4, 5, 8, 9, 99)] == [0.0015] * 2 + [0.5] * 4
    assert [terms.outer_at(step).momentum for step in (0, 8, 9)] == [0.5, 0.5, 0.1]


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("nesterov", OuterOptimizer(0.7, 0.5, nesterov=True)),
        ("momentum", OuterOptimizer(0.7, 0.5, nesterov=False)),
        ("average", OuterOptimizer(1.0, 0.0, nesterov=False)),
    ],
)
def test_the_outer_optimizer_is_the_one_that_the_recipe_names(name: str, made: OuterOptimizer, recipe: Recipe) -> None:
    assert Terms(recipe_with(recipe, {"outer.optimizer": name})).outer_at(7) == made


def test_an_outer_schedule_goes_by_the_outer_step_and_the_recipe_that_holds_at_it(recipe: Recipe) -> None:
    falling = recipe_with(
        recipe,
        {"outer.schedule": "linear", "outer.learning_rate": 1.0, "outer.total_steps": 10, "outer.floor": 0.0},
    )
    terms = Terms(falling, [Change(5, {"outer.learning_rate": 2.0}), Change(8, {"outer.schedule": "constant"})])
    rates = [terms.outer_at(step).learning_rate for step in (0, 1, 4, 5, 7, 8, 99)]
    assert rates == pytest.approx([1.0, 0.9, 0.6, 1.0, 0.6, 2.0, 2.0])


def test_the_later_of_two_changes_at_one_step_counts_and_adds_to_the_first(recipe: Recipe) -> None:
    terms = Terms(recipe, [Change(5, {"inner.clip": 2.0}, "pause"), Change(5, {"outer.momentum": 0.2})])
    assert terms.recipe_at(5).inner.clip == 2.0
    assert terms.outer_at(5).momentum == 0.2
    assert (terms.phase_at(4), terms.phase_at(5)) == ("train", "train")


def test_peers_that_go_by_different_terms_differ_in_the_fingerprint_from_that_step_on(recipe: Recipe) -> None:
    before, after = Terms(recipe), Terms(recipe, [Change(5, {"inner.learning_rate": 0.5})])
    assert before.fingerprint(4) == after.fingerprint(4)
    assert before.fingerprint(5) != after.fingerprint(5)
    assert 0 < len(after.fingerprint(5)) <= 16


def test_what_need_not_be_agreed_on_is_no_part_of_it(recipe: Recipe) -> None:
    other = recipe_with(recipe, {"checkpoint.every": 3})
    assert Terms(recipe).fingerprint(0) == Terms(other).fingerprint(0)


def test_a_change_that_does_not_fit_leaves_all_as_it_was(recipe: Recipe) -> None:
    terms = Terms(recipe, [Change(5, {"inner.clip": 2.0})])
    with pytest.raises(BadInput, match=r"inner\.clip"):
        terms.replace([Change(5, {"inner.clip": -2.0})])
    assert terms.recipe_at(5).inner.clip == 2.0


@pytest.mark.parametrize("how", ["replace", "refuse"])
def test_who_waits_for_a_change_hears_of_it(how: str, recipe: Recipe) -> None:
    terms = Terms(recipe, [Change(0, phase="pause")])
    act = {"replace": lambda: terms.replace([]), "refuse": lambda: terms.refuse(BadInput("no more"))}[how]
    with terms.changed:
        threading.Timer(0.01, act).start()
        assert terms.changed.wait(20)
    assert terms.phase_at(0) == "train" or terms.refusal is not None


def test_differences_are_those_that_may_change(recipe: Recipe) -> None:
    changed = recipe_with(recipe, {"inner.learning_rate": 0.5, "model.layers": 5, "checkpoint.every": 3})
    assert differences(recipe, changed) == {"inner.learning_rate": 0.5}
    assert differences(recipe, recipe) == {}
