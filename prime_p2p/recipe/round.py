"""The section [round] of a recipe."""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from prime_p2p.recipe.section import NotNegative, Positive, Seconds, Section, impossible

InnerStepsFrom = Annotated[tuple[NotNegative, Positive], Field(strict=False)]


class RoundRecipe(Section):
    """[round]: how peers meet. Times are in seconds.

    `inner_steps` lie between two outer steps, or others by `inner_steps_schedule`: pairs of an outer step and the
    number that holds from there on. `patience` bounds the wait for slower peers, `grace` is what a warned peer gets to
    join with the steps it has, `stall_timeout` the time without a byte of progress after which a peer counts as gone,
    and `start_with` the number of peers to wait for before the very first inner step. A peer whose pseudo-gradient is
    more than `explosion_factor` times as large as its own usually are sits the round out (0: never). `codec` is how
    pseudo-gradients travel: in a byte a parameter, or in half a byte.
    """

    inner_steps: Positive
    inner_steps_schedule: tuple[InnerStepsFrom, ...] = Field(default=(), strict=False)
    patience: Seconds = 30.0
    grace: Seconds = 2.0
    stall_timeout: Seconds = 5.0
    max_group: int = Field(default=32, ge=1, le=256)
    start_with: int = Field(default=1, ge=1)
    explosion_factor: float = Field(default=10.0, ge=0)
    codec: Literal["int8", "int4"] = "int8"

    def inner_steps_at(self, outer_step: int) -> int:
        """Inner steps from ``outer_step`` to the next one."""
        return next(steps for since, steps in reversed(self._spans) if since <= outer_step)

    def inner_steps_before(self, outer_step: int) -> int:
        """Inner steps from the beginning of the run to ``outer_step``, of a peer that was there all the time."""
        ends = [min(since, outer_step) for since, _ in self._spans[1:]] + [outer_step]
        return sum(max(0, end - since) * steps for (since, steps), end in zip(self._spans, ends, strict=True))

    @property
    def _spans(self) -> list[tuple[int, int]]:
        return [(0, self.inner_steps), *self.inner_steps_schedule]

    @model_validator(mode="after")
    def _values_fit(self) -> "RoundRecipe":
        if self.start_with > self.max_group:
            found = f"{self.start_with} and {self.max_group}"
            impossible("start_with", f"must be at most round.max_group (got {found})")
        if 0 < self.explosion_factor < 2:
            impossible("explosion_factor", f"must be 0 or at least 2 (got {self.explosion_factor:g})")
        begins = [since for since, _ in self.inner_steps_schedule]
        if any(later <= earlier for earlier, later in pairwise(begins)):
            impossible("inner_steps_schedule", f"must have outer steps that rise from pair to pair (got {begins})")
        return self
