"""[eval], [checkpoint] and [serving]: what each peer may choose for itself."""

from pydantic import Field

from prime_p2p.recipe.section import NotNegative, Positive, Section


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
