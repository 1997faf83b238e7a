"""The section [run] of a recipe."""

import re
from typing import Literal

from pydantic import Field

from prime_p2p.agreement import shown
from prime_p2p.errors import BadInput
from prime_p2p.recipe.section import NotNegative, Section

RUN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
RUN_NAME_RULE = "must start with a letter or digit and hold at most 64 letters, digits, '.', '_' or '-'"


class RunRecipe(Section):
    """[run]: which run this is. `outer_steps` is where a peer stops by itself, 0 for never.

    `start` says who begins the run where nobody holds a state of it: "anyone", or "nobody": peers then wait for one
    that holds it.
    """

    name: str = Field(pattern=RUN_NAME)
    seed: int = Field(default=0, ge=0, lt=2**63)
    outer_steps: NotNegative = 0
    start: Literal["anyone", "nobody"] = "nobody"


def check_run_name(name: str) -> None:
    """Raises BadInput where a run cannot be called so."""
    if re.fullmatch(RUN_NAME, name) is None:
        raise BadInput(f"run name {shown(name)}: {RUN_NAME_RULE}")
