"""The section [inner] of a recipe."""

from typing import Literal

from pydantic import Field, model_validator

from prime_p2p.recipe.section import Beta, NotNegative, Section, impossible


class InnerRecipe(Section):
    """[inner]: the optimizer of the inner steps. `batch_size` is in sequences, `total_steps` the length of a cosine."""

    optimizer: Literal["adamw"] = "adamw"
    learning_rate: float = Field(gt=0, le=100)
    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.95), strict=False)
    weight_decay: float = Field(default=0.1, ge=0, le=1)
    warmup_steps: NotNegative = 0
    schedule: Literal["constant", "cosine"] = "constant"
    total_steps: NotNegative = 0
    batch_size: int = Field(gt=0, le=2**20)
    clip: float = Field(default=1.0, ge=0)

    @model_validator(mode="after")
    def _cosine_has_a_length(self) -> "InnerRecipe":
        if self.schedule == "cosine" and self.total_steps <= self.warmup_steps:
            found = f"{self.total_steps} and {self.warmup_steps}"
            impossible("total_steps", f"must be greater than inner.warmup_steps for a cosine schedule (got {found})")
        return self
