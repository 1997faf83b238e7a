"""What is left of a rate at a step. It follows from the step alone, so that peers and restarts agree on it."""

from __future__ import annotations

import math

from prime_p2p.recipe import InnerRecipe, OuterRecipe


def inner_rate(recipe: InnerRecipe, step: int) -> float:
    """The learning rate of a global inner step (from 0): a linear warm-up, then what the schedule says.

    "constant" stays; "cosine" falls from there on, as Chinchilla (arXiv:2203.15556) and DiLoCo (arXiv:2311.08105)
    anneal; "wsd" stays, and falls by a square root over the last ``decay_steps`` (arXiv:2405.18392).
    """
    if step < recipe.warmup_steps:
        return recipe.learning_rate * (step + 1) / recipe.warmup_steps
    if recipe.schedule == "constant":
        return recipe.learning_rate
    length = recipe.decay_steps if recipe.schedule == "wsd" else recipe.total_steps - recipe.warmup_steps
    done = _share(step - (recipe.total_steps - length), length)
    fallen = math.sqrt(done) if recipe.schedule == "wsd" else _half_wave(done)
    return recipe.learning_rate * _between(recipe.floor, fallen)


def outer_rate(recipe: OuterRecipe, step: int) -> float:
    """The learning rate with which outer step ``step`` (from 0) leads on, to the same bit at every peer."""
    peak = 1.0 if recipe.optimizer == "average" else recipe.learning_rate
    if recipe.schedule == "constant":
        return peak
    done = _share(step, recipe.total_steps)
    fallen = done if recipe.schedule == "linear" else _half_wave(done)
    return peak * _between(recipe.floor, fallen)


def _share(step: int, length: int) -> float:
    """How much of a decline of ``length`` steps is behind at its ``step``, from 0 to 1; that may lie outside of it."""
    return min(max(step, 0), length) / length


def _between(floor: float, fallen: float) -> float:
    """From 1 where nothing has fallen to ``floor`` where all has."""
    return floor + (1 - floor) * (1 - fallen)


def _half_wave(x: float) -> float:
    """(1 - cos(pi x)) / 2 for x from 0 to 1, from additions, multiplications and divisions alone.

    They give the same bits on every machine; the cosines of two C libraries may differ in the last.
    """
    angle = math.pi * x
    total = term = 1.0
    for n in range(2, 32, 2):
        term *= -angle * angle / (n * (n - 1))
        total += term
    return (1 - total) / 2
