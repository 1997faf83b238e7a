"""The section [model] of a recipe."""

from typing import Literal

from pydantic import Field, JsonValue, model_validator

from prime_p2p.recipe.section import Positive, Section, impossible

_LLAMA = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "rms_norm_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
    "tie_word_embeddings": "tie_word_embeddings",
}
"""The keys that say the shape of a Llama, and what transformers calls them."""


class ModelRecipe(Section):
    """[model]: a causal language model of transformers. `context` is the length of a training sequence, in tokens.

    One of three says which model:

    - the shape of a Llama, from `vocab_size` to `tie_word_embeddings`;
    - `architecture`, a model type of transformers such as "gpt2", with the keys of its config in [model.config];
    - `source`, a folder, or else a repository on the Hugging Face Hub (of `revision`), with a config.json.
      `Recipe.load` reads that into `architecture` and `config`; keys of [model.config] win over it.

    `weights` are "random", made from the seed of the run, or "given": the safetensors of `source`. Peers agree on their
    `digest`, which `Recipe.load` finds, not on where they come from.
    """

    vocab_size: int = Field(default=256, ge=256, le=2**24)
    hidden_size: Positive | None = None
    intermediate_size: Positive | None = None
    layers: Positive | None = None
    heads: Positive | None = None
    kv_heads: Positive | None = None
    rms_norm_eps: float = Field(default=1e-6, gt=0, lt=1)
    rope_theta: float = Field(default=10000.0, ge=1)
    tie_word_embeddings: bool = False
    context: int = Field(ge=2, le=2**24)
    architecture: str = ""
    config: dict[str, JsonValue] = Field(default_factory=dict)
    source: str = ""
    revision: str = "main"
    weights: Literal["random", "given"] = "random"
    digest: str = Field(default="", pattern="^([0-9a-f]{64})?$")

    @property
    def described(self) -> tuple[str, dict[str, JsonValue]]:
        """The architecture and the keys of its config, whichever way the recipe says them."""
        if self.architecture:
            return self.architecture, self.config
        return "llama", {theirs: getattr(self, ours) for ours, theirs in _LLAMA.items()} | {
            "max_position_embeddings": self.context
        }

    @model_validator(mode="after")
    def _one_model_is_named(self) -> "ModelRecipe":
        if self.weights == "given" and not (self.source or self.digest):
            impossible("weights", 'must be "random" where no model.source has any')
        if not (self.architecture or self.source):
            if self.config:
                impossible("architecture", "is missing: the keys of model.config are of one, such as qwen2")
            self._check_llama()
            return self
        for key in _LLAMA:
            if getattr(self, key) != type(self).model_fields[key].default:
                impossible(
                    key, f"is for a Llama by its shape; set {_LLAMA[key]} in [model.config], or what it is there"
                )
        return self

    def _check_llama(self) -> None:
        for key in _LLAMA:
            if getattr(self, key) is None:
                impossible(key, "is missing")
        assert self.hidden_size is not None
        assert self.heads is not None
        assert self.kv_heads is not None
        if self.hidden_size % self.heads:
            impossible("hidden_size", f"must be divisible by model.heads (got {self.hidden_size} and {self.heads})")
        if self.hidden_size // self.heads % 2:
            size = self.hidden_size // self.heads
            impossible(
                "hidden_size", f"must be an even number of times model.heads, for rotary embeddings (got {size})"
            )
        if self.heads % self.kv_heads:
            impossible("kv_heads", f"must divide model.heads (got {self.kv_heads} and {self.heads})")
