"""The section [round] of a recipe."""

from typing import Literal

from pydantic import Field, model_validator

from prime_p2p.recipe.section import Positive, Seconds, Section, impossible


class RoundRecipe(Section):
    """[round]: how peers meet. Times are in seconds.

    `patience` bounds the wait for slower peers, `grace` is what a warned peer gets to join with the steps it has,
    `stall_timeout` the time without a byte of progress after which a peer counts as gone, and `start_with` the number
    of peers to wait for before the very first inner step. A peer whose pseudo-gradient is more than `explosion_factor`
    times as large as its own usually are sits the round out (0: never). `codec` is how pseudo-gradients travel: in a
    byte a parameter, or in half a byte.
    """

    inner_steps: Positive
    patience: Seconds = 30.0
    grace: Seconds = 2.0
    stall_timeout: Seconds = 5.0
    max_group: int = Field(default=32, ge=1, le=256)
    start_with: int = Field(default=1, ge=1)
    explosion_factor: float = Field(default=10.0, ge=0)
    codec: Literal["int8", "int4"] = "int8"

    @model_validator(mode="after")
    def _values_fit(self) -> "RoundRecipe":
        if self.start_with > self.max_group:
            found = f"{self.start_with} and {self.max_group}"
            impossible("start_with", f"must be at most round.max_group (got {found})")
        if 0 < self.explosion_factor < 2:
            impossible("explosion_factor", f"must be 0 or at least 2 (got {self.explosion_factor:g})")
        return self
