"""The section [model] of a recipe."""

from pydantic import Field, model_validator

from prime_p2p.recipe.section import Positive, Section, impossible


class ModelRecipe(Section):
    """[model]: the shape of a Llama. `context` is in tokens; tokens are bytes unless `vocab_size` allows for more."""

    vocab_size: int = Field(default=256, ge=256, le=2**24)
    hidden_size: Positive
    intermediate_size: Positive
    layers: Positive
    heads: Positive
    kv_heads: Positive
    context: int = Field(ge=2, le=2**24)

    @model_validator(mode="after")
    def _shape_is_possible(self) -> "ModelRecipe":
        if self.hidden_size % self.heads:
            impossible("hidden_size", f"must be divisible by model.heads (got {self.hidden_size} and {self.heads})")
        if self.hidden_size // self.heads % 2:
            size = self.hidden_size // self.heads
            impossible(
                "hidden_size", f"must be an even number of times model.heads, for rotary embeddings (got {size})"
            )
        if self.heads % self.kv_heads:
            impossible("kv_heads", f"must divide model.heads (got {self.kv_heads} and {self.heads})")
        return self
