"""The text of a run as tokens: what peers train on, and what none of them ever does."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from blake3 import blake3

from prime_p2p.errors import BadInput
from prime_p2p.long_work import Watch, unwatched
from prime_p2p.recipe import BYTES, DataRecipe
from prime_p2p.training.data.sources import Record, Source, source_of
from prime_p2p.training.data.tokenised import Documents, smallest_type, tokenised
from prime_p2p.training.data.tokenizer import ByteTokenizer, Tokenizer, Tokens

CACHE = "tokens"  # in a peer's folder


@dataclass(frozen=True)
class Places:
    """Where relative paths of a recipe begin (``data``), and where tokens are kept (``cache``)."""

    data: Path = Path()
    cache: Path = Path(CACHE)


@dataclass(frozen=True)
class Corpus:
    """Two texts that share no document, and what their tokens mean."""

    train_documents: Documents
    validation_documents: Documents
    tokenizer: Tokenizer

    @property
    def train(self) -> Tokens:
        return self.train_documents.tokens

    @property
    def validation(self) -> Tokens:
        return self.validation_documents.tokens

    @cached_property
    def fingerprint(self) -> str:
        """Tells the text from another one: its length and a thousand places in it."""
        tokens = self.train
        places = np.linspace(0, max(0, len(tokens) - 1), 1000).astype(np.int64)
        sample = np.ascontiguousarray(tokens[places], "<u4").tobytes() if len(tokens) else b""
        return blake3(len(tokens).to_bytes(8, "little") + sample).hexdigest(8)

    @classmethod
    def load(
        cls,
        recipe: DataRecipe,
        places: Places | None = None,
        tokenizer: Tokenizer | None = None,
        say: Callable[[str], None] = lambda text: None,
        watch: Watch = unwatched,
    ) -> Corpus:
        """Read what the recipe names; without ``tokenizer`` as bytes. ``say`` is told what happens on the way.

        Files of text are held in memory where tokens are bytes, everything else is tokenised into the cache.

        Raises:
            BadInput: there is no such source, it cannot be read or is empty, or the cache cannot be written.
        """
        places, tokenizer = places or Places(), tokenizer or ByteTokenizer()
        try:
            source = source_of(recipe, places.data)
            if recipe.format == "text" and recipe.tokenizer == BYTES and not recipe.on_the_hub:
                sides = _in_memory(source, tokenizer)
            else:
                folder = _folder(recipe, places, source, tokenizer)
                sides, _ = tokenised(source, tokenizer, recipe.records, folder, say, watch)
        except OSError as error:
            raise BadInput(f"data.source: {error.filename or recipe.source}: {error.strerror or error}") from None
        return cls(sides["train"], sides["validation"], tokenizer)


def _folder(recipe: DataRecipe, places: Places, source: Source, tokenizer: Tokenizer) -> Path:
    """Where the tokens of a source are kept: another place for another source, tokenizer or number of records."""
    identity = json.dumps([source.identity, tokenizer.hash, recipe.records])
    cache = places.data / recipe.cache if recipe.cache else places.cache
    return cache / blake3(identity.encode("utf-8", "surrogateescape")).hexdigest(16)


def _in_memory(source: Source, tokenizer: Tokenizer) -> dict[str, Documents]:
    records = [record for record in source.records() if record is not None]
    return {
        "train": _joined([record for record in records if not record.held_out], tokenizer),
        "validation": _joined([record for record in records if record.held_out], tokenizer),
    }


def _joined(records: Sequence[Record], tokenizer: Tokenizer) -> Documents:
    joined, ends = bytearray(), []
    for record in records:
        joined += record.text
        if record.whole:
            joined.append(tokenizer.end)
        ends.append(len(joined))
    return Documents(np.frombuffer(joined, smallest_type(tokenizer.size)), np.array(ends, np.int64))
