"""A data set of the Hugging Face hub, or the copy of one in a folder, read as a stream by ``datasets``.

Data sets that need code of their own are not read: ``datasets`` runs none since its version 4. A data set's card may
name any file as its data, also one of the machine it is read on, so all are looked at before one is opened. Nobody
logs in: whoever names a data set may be somebody else than who may see it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prime_p2p.errors import BadInput, PrimeError
from prime_p2p.recipe import DataRecipe, of_the_hub

Records = Iterator[bytes | None]


def rows(recipe: DataRecipe, folder: Path) -> Records:
    """The field of each row; None for the rest of a file that is damaged. A relative mirror begins in ``folder``.

    Raises:
        BadInput: ``datasets`` is not installed, the data set cannot be opened, names files that are not its own, or has
            no such field.
        PrimeError: it cannot be read any further.
    """
    stream = _opened(recipe, folder)
    if stream.features is not None:
        _check_field(recipe, list(stream.features))
        stream = stream.select_columns([recipe.field])  # what else a row has is not decoded
    for number in range(stream.num_shards):
        yield from _rows_of_file(stream.shard(stream.num_shards, number), recipe)


def _opened(recipe: DataRecipe, folder: Path) -> Any:
    """The split as an ``IterableDataset``."""
    try:
        import datasets
    except ImportError:
        raise BadInput(
            f'data.source: {recipe.source} is read with datasets, which is missing: pip install "prime_p2p[data]"'
        ) from None
    repository, revision = of_the_hub(recipe.source)
    path = repository
    if recipe.mirror:
        mirror = folder / recipe.mirror
        if not mirror.is_dir():
            raise BadInput(f"data.mirror: {mirror}: no such folder")
        path, revision = str(mirror), None
    try:
        builder = datasets.load_dataset_builder(path, recipe.config or None, revision=revision, token=False)
        if not recipe.mirror:
            _check_files(recipe.source, repository, builder.config.data_files or {})
        return builder.as_streaming_dataset(recipe.split)
    except BadInput:
        raise
    except Exception as error:  # noqa: BLE001 - of datasets, of the hub's client, of HTTP, or of the machine
        where = recipe.mirror or recipe.source
        raise BadInput(f"data.source: {where} cannot be opened: {_one_line(error)}") from None


def _check_files(source: str, repository: str, files: dict[str, list[str]]) -> None:
    own = f"hf://datasets/{repository}@"
    named = [str(file) for of_split in files.values() for file in of_split]
    foreign = next((file for file in named if not file.startswith(own)), None)
    if foreign is not None or not named:
        what = f"names {foreign[:80]!r} as its data" if foreign else "names no files"
        raise BadInput(f"data.source: {source} {what}; only data sets whose files are their own are read")


def _rows_of_file(stream: Any, recipe: DataRecipe) -> Records:
    try:
        for row in stream:
            if recipe.field not in row:
                _check_field(recipe, list(row))
            text = row[recipe.field]
            yield text.encode("utf-8", "replace") if isinstance(text, str) else None
    except PrimeError:
        raise
    except ValueError:  # also of pyarrow: the file is damaged from here on
        yield None
    except Exception as error:  # noqa: BLE001 - of the hub's client, of HTTP, or of the machine
        raise PrimeError(
            f"data.source: {recipe.source} cannot be read on: {_one_line(error)}; what was read is kept, start again"
        ) from None


def _check_field(recipe: DataRecipe, names: list[str]) -> None:
    if recipe.field not in names:
        raise BadInput(f"data.field: {recipe.source} has no {recipe.field!r}, but {', '.join(names[:10])}")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
