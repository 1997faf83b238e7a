"""What a machine is compared with before it is a peer: a recipe, or a public run as it is at present."""

from __future__ import annotations

from dataclasses import dataclass

from prime_p2p.builtin_recipes import find_recipe
from prime_p2p.doctor.facts import Needs
from prime_p2p.doctor.needs import needs_of
from prime_p2p.errors import Unreachable
from prime_p2p.estimate import Estimate
from prime_p2p.public.look import look_at
from prime_p2p.public.run_address import RunAddress
from prime_p2p.recipe import Recipe


@dataclass(frozen=True)
class Yardstick:
    """The name of the run, what it needs of a machine (None: not known), its largest group, and whom to find it by."""

    name: str
    needs: Needs | None
    group: int | None
    bootstrap: tuple[str, ...] = ()


def of_recipe(given: str) -> Yardstick:
    """In the largest group. Raises BadInput where there is no such recipe."""
    recipe = Recipe.load(find_recipe(given))
    group = recipe.round.max_group
    return Yardstick(recipe.run.name, needs_of(Estimate(recipe, group)), group)


def of_run(address: str) -> Yardstick:
    """In a group of those who are there and one more; where nobody is reached, what it needs is not known.

    Raises BadInput where the address is none, or the run is not known there.
    """
    parsed = RunAddress.parse(address)
    try:
        look = look_at(parsed)
    except Unreachable:
        return Yardstick(parsed.name, None, None, (parsed.bootstrap,))
    bootstrap = dict.fromkeys([parsed.bootstrap, *look.bootstraps])
    return Yardstick(parsed.name, look.needs, look.recipe.round.max_group, tuple(bootstrap))
