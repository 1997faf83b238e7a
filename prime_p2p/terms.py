"""The recipe of a run, outer step by outer step: its author may change some of it while the run goes on.

A change holds from an outer step on that all peers reach later than they hear of it, so that they make it together. Who
joins late, or makes old outer steps again, goes by the recipe of each step.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from blake3 import blake3

from prime_p2p.errors import BadInput
from prime_p2p.outer.nesterov import OuterOptimizer
from prime_p2p.recipe import Recipe
from prime_p2p.schedules import outer_rate

Phase = Literal["train", "pause", "end"]

CHANGEABLE = {
    "inner": (
        *("learning_rate", "betas", "momentum", "nesterov", "weight_decay", "clip"),
        *("warmup_steps", "schedule", "total_steps", "decay_steps", "floor"),
    ),
    "outer": ("optimizer", "learning_rate", "momentum", "schedule", "total_steps", "floor"),
    "run": ("outer_steps",),
}
"""What may change, by section. Everything else makes another run: the state or the bytes would not fit any more."""


@dataclass(frozen=True)
class Change:
    """From outer step ``at`` on, ``values`` ("section.key" -> value) hold, and the run trains, pauses or has ended."""

    at: int
    values: Mapping[str, Any] = field(default_factory=dict)
    phase: Phase = "train"


class Terms:
    """A recipe and the changes to it. Both ``replace`` and ``refuse`` may come from another thread, and notify
    ``changed``. ``refusal`` is why this peer cannot go on, once that is so."""

    def __init__(self, recipe: Recipe, changes: Sequence[Change] = ()) -> None:
        """Raises BadInput where a change does not fit the recipe."""
        self.base = recipe
        self.changed = threading.Condition()
        self.refusal: BadInput | None = None
        self._steps = _by_step(recipe, changes)

    def replace(self, changes: Sequence[Change]) -> None:
        """Go by these changes from now on. Raises BadInput, with nothing changed, where one does not fit."""
        steps = _by_step(self.base, changes)
        with self.changed:
            self._steps = steps
            self.changed.notify_all()

    def refuse(self, reason: BadInput) -> None:
        """This peer is to leave the run, for this reason."""
        with self.changed:
            self.refusal = reason
            self.changed.notify_all()

    def recipe_at(self, step: int) -> Recipe:
        """The recipe that holds at outer step ``step``."""
        return self._at(step).recipe

    def phase_at(self, step: int) -> Phase:
        """What peers do that have come to outer step ``step``."""
        return self._at(step).phase

    def outer_at(self, step: int) -> OuterOptimizer:
        recipe = self._at(step).recipe.outer
        momentum = 0.0 if recipe.optimizer == "average" else recipe.momentum
        return OuterOptimizer(outer_rate(recipe, step), momentum, nesterov=recipe.optimizer == "nesterov")

    def fingerprint(self, step: int) -> bytes:
        return self._at(step).fingerprint

    def _at(self, step: int) -> _Step:
        return next(held for held in reversed(self._steps) if held.since <= step)


@dataclass(frozen=True)
class Course:
    """What a peer is to do: by which terms, and from which initial state (its digest, where that is known).

    ``data_folder`` is where a relative path of the recipe's data begins.
    """

    terms: Terms
    initial_digest: bytes | None = None
    data_folder: Path = Path()


@dataclass(frozen=True)
class _Step:
    """What holds from outer step ``since`` on."""

    since: int
    recipe: Recipe
    phase: Phase

    @property
    def fingerprint(self) -> bytes:
        return blake3(json.dumps(self.recipe.shared(), sort_keys=True).encode()).digest(16)


def _by_step(recipe: Recipe, changes: Sequence[Change]) -> list[_Step]:
    """What holds from which step on, in order; of two changes at one step the later one counts."""
    steps = [_Step(0, recipe, "train")]
    for change in sorted(changes, key=lambda change: change.at):
        steps.append(_Step(change.at, recipe_with(steps[-1].recipe, change.values), change.phase))
    return steps


def recipe_with(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """The recipe with these values ("section.key" -> value) in it. Raises BadInput where it is none then."""
    table = recipe.model_dump(mode="json")
    for name, value in values.items():
        section, _, key = name.partition(".")
        table[section][key] = value
    return Recipe.from_table(table, "the changed recipe")


def differences(before: Recipe, after: Recipe) -> dict[str, Any]:
    """What of ``CHANGEABLE`` is another value in ``after``: "section.key" -> that value."""
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    return {
        f"{section}.{key}": new[section][key]
        for section, keys in CHANGEABLE.items()
        for key in keys
        if new[section][key] != old[section][key]
    }
