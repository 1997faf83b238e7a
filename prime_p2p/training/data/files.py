"""The files of a source: which there are below a folder, and which of them hold text."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from prime_p2p.errors import BadInput
from prime_p2p.recipe import STDLIB, DataRecipe

# Folders left out of the standard library: installed packages, what not every installation has, and what is tables or
# documentation rather than code.
_STDLIB_LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "idlelib", "turtledemo", "lib2to3", "distutils"}
    | {"encodings", "pydoc_data"}
)
_SNIFFED = 8192  # bytes of a file looked at to tell text from binary


def files_of(recipe: DataRecipe, folder: Path) -> tuple[Path, list[str]]:
    """The root of the source and the relative paths, in order, of its files; one file is its own root's only one.

    Raises:
        BadInput: there is no such file or folder, or nothing in it that fits the recipe.
    """
    if recipe.source == STDLIB:
        root = Path(sysconfig.get_path("stdlib"))
        names = [name for name in _walk(root, _STDLIB_LEFT_OUT) if name.endswith(".py")]
    else:
        root = folder / recipe.source
        if root.is_file():
            return root.parent, [root.name]
        if not root.is_dir():
            raise BadInput(f"data.source: {root}: no such file or folder")
        names = [name for name in _walk(root, frozenset()) if recipe.format != "text" or _is_text(root / name)]
    names = [name for name in names if not any(fnmatchcase(name, pattern) for pattern in recipe.exclude)]
    if not names:
        raise BadInput(f"data.source: {root}: holds no {'text ' if recipe.format == 'text' else ''}files")
    return root, names


def fingerprint(root: Path, names: Sequence[str]) -> list[list[object]]:
    """What tells that files are the same as before: names, sizes and times of the last change."""
    stats = [(root / name).stat() for name in names]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in zip(names, stats, strict=True)]


def size_of(root: Path, names: Sequence[str]) -> int:
    """Bytes of all files."""
    return sum((root / name).stat().st_size for name in names)


def _walk(root: Path, left_out: frozenset[str]) -> list[str]:
    """Sorted relative paths, with slashes, of all files below a folder except hidden ones and folders left out."""
    names = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in left_out and not name.startswith(".")]
        names += [(Path(folder) / name).relative_to(root).as_posix() for name in files if not name.startswith(".")]
    return sorted(names)


def _is_text(path: Path) -> bool:
    if not path.is_file():  # a socket, a pipe or a broken link
        return False
    with path.open("rb") as file:
        return b"\0" not in file.read(_SNIFFED)
