"""The section [data] of a recipe."""

from pydantic import Field

from prime_p2p.recipe.section import Section

STDLIB = "python-stdlib"
"""A ``data.source`` that is on every machine: the source files of Python's standard library."""


class DataRecipe(Section):
    """[data]: the text. `source` is "python-stdlib" or a path, `exclude` patterns of relative paths.

    `licence` is what the run says of the text, in any words.
    """

    source: str = Field(default=STDLIB, min_length=1)
    licence: str = ""
    validation_share: float = Field(default=0.05, gt=0, lt=1)
    exclude: tuple[str, ...] = Field(default=(), strict=False)
