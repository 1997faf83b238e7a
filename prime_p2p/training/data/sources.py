"""Where text comes from: a source is its records in an order, and says which of them no peer ever trains on.

Of files of text those are held out whose relative path has a hash below the share, of other records those whose text
has: peers that never spoke agree on it, and a record that is there twice is not on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from blake3 import blake3

from prime_p2p.long_work import Advance, ignore
from prime_p2p.recipe import DataRecipe, of_the_hub
from prime_p2p.training.data import hub, records
from prime_p2p.training.data.files import files_of, fingerprint, size_of


@dataclass(frozen=True)
class Record:
    """One document, or its beginning where it is not ``whole``; ``held_out`` is for validation only."""

    text: bytes
    held_out: bool
    whole: bool = True


class Source(Protocol):
    @property
    def name(self) -> str:
        """What people know it by."""
        ...

    @property
    def identity(self) -> list[object]:
        """Plain values that are others where the records are."""
        ...

    @property
    def size(self) -> int | None:
        """Bytes of all that there is to read; None where that is not known."""
        ...

    def records(self, read: Advance = ignore) -> Iterator[Record | None]:
        """All of them, always in the same order; None is a damaged one. ``read`` is told of the bytes that were read.

        Raises BadInput, OSError.
        """
        ...


def source_of(recipe: DataRecipe, folder: Path) -> Source:
    """The source that a recipe names; a relative path begins in ``folder``. Raises BadInput, OSError."""
    if recipe.on_the_hub:
        return _HubRecords(recipe, folder)
    root, names = files_of(recipe, folder)
    if recipe.format == "text":
        return _Texts(recipe.source, root, names, recipe.validation_share)
    return _FileRecords(recipe, root, names)


@dataclass(frozen=True)
class _Texts:
    """Files that are a document each. One file alone is split at a position: its last share is held out."""

    name: str
    root: Path
    names: Sequence[str]
    share: float

    @property
    def identity(self) -> list[object]:
        return ["text", self.share, *fingerprint(self.root, self.names)]

    @property
    def size(self) -> int:
        return size_of(self.root, self.names)

    def records(self, read: Advance = ignore) -> Iterator[Record | None]:
        if len(self.names) == 1:
            text = (self.root / self.names[0]).read_bytes()
            read(len(text))
            cut = round((len(text) + 1) * (1 - self.share))
            yield Record(text[:cut], held_out=False, whole=cut > len(text))
            if cut <= len(text):
                yield Record(text[cut:], held_out=True)
            return
        held_out = _held_out_names(self.names, self.share)
        for name in self.names:
            text = (self.root / name).read_bytes()
            read(len(text))
            yield Record(text, name in held_out)


@dataclass(frozen=True)
class _FileRecords:
    """Files of many records each."""

    recipe: DataRecipe
    root: Path
    names: Sequence[str]

    @property
    def name(self) -> str:
        return self.recipe.source

    @property
    def identity(self) -> list[object]:
        recipe = self.recipe
        return [recipe.format, recipe.field, recipe.validation_share, *fingerprint(self.root, self.names)]

    @property
    def size(self) -> int:
        return size_of(self.root, self.names)

    def records(self, read: Advance = ignore) -> Iterator[Record | None]:
        for name in self.names:
            for text in self._texts(self.root / name, read):
                yield _by_content(text, self.recipe.validation_share)

    def _texts(self, path: Path, read: Advance) -> Iterator[bytes | None]:
        if self.recipe.format == "jsonl":
            return records.json_lines(path, self.recipe.field, read)
        if self.recipe.format == "parquet":
            return records.parquet_rows(path, self.recipe.field, read)
        return records.reads(path, read)


@dataclass(frozen=True)
class _HubRecords:
    """The rows of a data set of the hub, known by its name and revision."""

    recipe: DataRecipe
    folder: Path

    @property
    def name(self) -> str:
        return self.recipe.source

    @property
    def identity(self) -> list[object]:
        recipe = self.recipe
        return ["hub", *of_the_hub(recipe.source), recipe.config, recipe.split, recipe.field, recipe.validation_share]

    @property
    def size(self) -> None:
        return None

    def records(self, read: Advance = ignore) -> Iterator[Record | None]:
        for text in hub.rows(self.recipe, self.folder):
            read(len(text or b""))
            yield _by_content(text, self.recipe.validation_share)


def _by_content(text: bytes | None, share: float) -> Record | None:
    return None if text is None else Record(text, _hash(text) < share * 2**64)


def _held_out_names(names: Sequence[str], share: float) -> set[str]:
    """The names whose hash falls below the share: at least one, and not all."""
    hashes = {name: _hash(name.encode("utf-8", "surrogateescape")) for name in names}
    by_hash = sorted(names, key=lambda name: (hashes[name], name))
    below = sum(value < share * 2**64 for value in hashes.values())
    return set(by_hash[: min(max(below, 1), len(names) - 1)])


def _hash(content: bytes) -> int:
    return int.from_bytes(blake3(content).digest(8), "big")
