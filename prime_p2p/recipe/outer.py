"""The section [outer] of a recipe."""

from typing import Literal

from pydantic import Field, model_validator

from prime_p2p.recipe.section import NotNegative, Section, impossible


class OuterRecipe(Section):
    """[outer]: the optimizer of the outer steps, and its rate by outer step.

    "nesterov" and "momentum" (heavy ball) go by `learning_rate` and `momentum`, "average" by neither: with it the
    anchor becomes the mean of the peers' parameters. A schedule other than "constant" lowers the rate from the first
    outer step on, to `floor` times itself at outer step `total_steps`.
    """

    optimizer: Literal["nesterov", "momentum", "average"] = "nesterov"
    learning_rate: float = Field(default=0.7, gt=0, le=100)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    total_steps: NotNegative = 0
    floor: float = Field(default=0.1, ge=0, le=1)

    @model_validator(mode="after")
    def _schedule_has_a_length(self) -> "OuterRecipe":
        if self.schedule != "constant" and not self.total_steps:
            impossible("total_steps", f"must be greater than 0 for a {self.schedule} schedule (got 0)")
        return self
