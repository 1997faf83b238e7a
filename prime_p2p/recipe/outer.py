"""The section [outer] of a recipe."""

from pydantic import Field

from prime_p2p.recipe.section import Section


class OuterRecipe(Section):
    """[outer]: the Nesterov optimizer of the outer steps."""

    learning_rate: float = Field(default=0.7, gt=0, le=100)
    momentum: float = Field(default=0.9, ge=0, lt=1)
