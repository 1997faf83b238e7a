"""The section [inner] of a recipe."""

from typing import Literal

from pydantic import Field, model_validator

from prime_p2p.recipe.section import Beta, NotNegative, Positive, Section, impossible


class InnerRecipe(Section):
    """[inner]: the optimizer of the inner steps, its rate by inner step, and the batch of one inner step.

    `betas` are those of AdamW, also of the one beside Muon; `momentum` and `nesterov` are those of Muon and SGD.
    `batch_size` is in sequences, and goes through the model in `accumulation` equal micro-batches. `total_steps` is the
    inner step at which the schedules cosine and wsd end, at `floor` times `learning_rate`; wsd falls in the last
    `decay_steps` of them. `clip` bounds the norm of the gradient (0: not at all).
    """

    optimizer: Literal["adamw", "adamw8bit", "muon", "sgd"] = "adamw"
    learning_rate: float = Field(gt=0, le=100)
    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.95), strict=False)
    momentum: Beta = 0.95
    nesterov: bool = True
    weight_decay: float = Field(default=0.1, ge=0, le=1)
    warmup_steps: NotNegative = 0
    schedule: Literal["constant", "cosine", "wsd"] = "constant"
    total_steps: NotNegative = 0
    decay_steps: NotNegative = 0
    floor: float = Field(default=0.1, ge=0, le=1)
    batch_size: int = Field(gt=0, le=2**20)
    accumulation: Positive = 1
    clip: float = Field(default=1.0, ge=0)

    @property
    def micro_batch(self) -> int:
        """Sequences that go through the model at a time."""
        return self.batch_size // self.accumulation

    @model_validator(mode="after")
    def _schedule_has_a_length(self) -> "InnerRecipe":
        if self.schedule == "cosine" and self.total_steps <= self.warmup_steps:
            found = f"{self.total_steps} and {self.warmup_steps}"
            impossible("total_steps", f"must be greater than inner.warmup_steps for a cosine schedule (got {found})")
        if self.schedule == "wsd":
            if not self.decay_steps:
                impossible("decay_steps", "must be greater than 0 for a wsd schedule (got 0)")
            if self.total_steps < self.warmup_steps + self.decay_steps:
                found = f"{self.total_steps}, {self.warmup_steps} and {self.decay_steps}"
                reason = f"must be at least inner.warmup_steps and inner.decay_steps together (got {found})"
                impossible("total_steps", reason)
        return self

    @model_validator(mode="after")
    def _batch_divides(self) -> "InnerRecipe":
        if self.batch_size % self.accumulation:
            impossible("accumulation", f"must divide inner.batch_size (got {self.accumulation} and {self.batch_size})")
        return self
