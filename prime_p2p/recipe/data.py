"""The section [data] of a recipe."""

from typing import Literal

from pydantic import Field, model_validator

from prime_p2p.recipe.section import NotNegative, Section, impossible

STDLIB = "python-stdlib"
"""A ``data.source`` that is on every machine: the source files of Python's standard library."""

HUB = "hf:"
"""What the name of a data set or tokenizer on the Hugging Face hub begins with: "hf:owner/name@revision"."""

BYTES = "bytes"
"""A ``data.tokenizer`` that needs no file: a token is a byte."""


class DataRecipe(Section):
    """[data]: what peers train on, and how it becomes sequences of tokens.

    `source` is "python-stdlib", a path, or "hf:owner/name@revision", of which `config` and `split` are read. `format`
    says what the files of a path hold: text, or records whose `field` is the text, or reads of a sequencer. `exclude`
    are patterns of relative paths, `records` how many records are taken, from the first on (0: all). `licence` is what
    the run says of the text, in any words.

    `tokenizer` is "bytes", the folder of a fast tokenizer, or "hf:owner/name@revision"; `tokenizer_hash` names its
    content, and another one is refused. `packing` says whether a sequence of several documents is read as one text, or
    each document by itself. `order` is "random" (each peer draws for itself) or "shared" (peers share each epoch out).

    What each peer may choose for itself: where it has the tokenizer from, `mirror`, a folder with a copy of the hub's
    data set, and `cache`, where tokens are kept (the peer's own folder where it is empty).
    """

    source: str = Field(default=STDLIB, min_length=1)
    format: Literal["text", "jsonl", "parquet", "reads"] = "text"
    field: str = Field(default="text", min_length=1)
    config: str = ""
    split: str = Field(default="train", min_length=1)
    mirror: str = ""
    exclude: tuple[str, ...] = Field(default=(), strict=False)
    records: NotNegative = 0
    licence: str = ""
    validation_share: float = Field(default=0.05, gt=0, lt=1)
    tokenizer: str = Field(default=BYTES, min_length=1)
    tokenizer_hash: str = Field(default="", pattern=r"^([0-9a-f]{32})?$")
    cache: str = ""
    packing: Literal["stream", "documents"] = "stream"
    order: Literal["random", "shared"] = "random"

    @property
    def on_the_hub(self) -> bool:
        """Whether the source is a data set of the Hugging Face hub."""
        return self.source.startswith(HUB)

    @model_validator(mode="after")
    def _values_fit(self) -> "DataRecipe":
        if self.source == STDLIB and self.format != "text":
            impossible("format", f'must be "text" where data.source is "{STDLIB}" (got "{self.format}")')
        if self.records and self.format == "text" and not self.on_the_hub:
            impossible("records", f"must be 0 where files are documents; exclude some of them (got {self.records})")
        if self.mirror and not self.on_the_hub:
            impossible("mirror", f'stands for a data.source that begins with "{HUB}" (got "{self.source}")')
        return self


def of_the_hub(name: str) -> tuple[str, str | None]:
    """The repository and the revision in "hf:owner/name@revision"; None where it names no revision."""
    repository, _, revision = name.removeprefix(HUB).partition("@")
    return repository, revision or None
