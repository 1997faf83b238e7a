"""[device], [eval], [checkpoint], [serving] and [logging]: what each peer may choose for itself."""

from typing import Literal

from pydantic import Field, model_validator

from prime_p2p.recipe.section import NotNegative, Positive, Section, impossible

_LONGEST_PROJECT = 128  # characters, as Weights & Biases has it
_NOT_IN_A_PROJECT = "/\\#?%:"


class DeviceRecipe(Section):
    """[device]: how a model computes where it is. Parameters, and what is made of them, are float32 whatever it says.

    `precision` is that of the forward and the backward pass: "bfloat16" (torch's autocast) or "float32"; "auto" is the
    first on a GPU that has it. float16 is not there: it would need a loss scaler. `attention` is an implementation of
    transformers; "auto" leaves it the choice. `compile` is torch.compile, layer by layer; left out, on a GPU alone.
    `checkpoint_activations` keeps only what goes into each layer, and computes the rest again when it is needed: less
    memory for a third more work.
    """

    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    compile: bool | None = None
    checkpoint_activations: bool = False


class EvalRecipe(Section):
    """[eval]: validation every so many outer steps (0 for never), on so many fixed sequences."""

    every: NotNegative = 5
    sequences: Positive = 64


class CheckpointRecipe(Section):
    """[checkpoint]: write to disk every so many outer steps (0 for only at the end), and keep the newest few."""

    every: NotNegative = 10
    keep: Positive = 2


class ServingRecipe(Section):
    """[serving]: what others may take of this peer's network to fetch its state.

    `rate` is in MB/s (0 for as fast as it can be), `at_once` the number of peers that fetch a snapshot at a time.
    """

    rate: float = Field(default=0.0, ge=0)
    at_once: int = Field(default=8, ge=1, le=256)


class LoggingRecipe(Section):
    """[logging]: where else the peer's metrics go; nowhere unless a folder or a project is named.

    `tensorboard` is a folder for TensorBoard's event files, relative to that of the peer. `wandb` is a project of
    Weights & Biases: "offline", it is kept in the peer's folder for `wandb sync`; "online", it is sent as it comes.
    """

    tensorboard: str = ""
    wandb: str = ""
    wandb_mode: Literal["offline", "online"] = "offline"

    @model_validator(mode="after")
    def _values_fit(self) -> "LoggingRecipe":
        if len(self.wandb) > _LONGEST_PROJECT or set(self.wandb) & set(_NOT_IN_A_PROJECT):
            impossible("wandb", f"must have at most {_LONGEST_PROJECT} characters, and none of {_NOT_IN_A_PROJECT}")
        if "\0" in self.tensorboard:
            impossible("tensorboard", "must be the name of a folder")
        return self
