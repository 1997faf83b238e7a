"""Text as bytes: a corpus every peer finds for itself, and batches that nobody has to hand out.

A token is a byte; token 0 ends a file. Which files are for validation follows from a hash of their relative paths, so
peers that never spoke agree on it. Batches come from a counter-based generator: the same (seed, peer, step) gives the
same batch in any process and in any order, so resuming needs no sampler state.
"""

import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from blake3 import blake3

from prime_p2p.errors import BadInput
from prime_p2p.recipe import STDLIB, DataRecipe
from prime_p2p.training.batch import Batch

END_OF_FILE = 0

# Folders left out of the standard library: installed packages, what not every installation has, and what is tables or
# documentation rather than code.
_STDLIB_LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "idlelib", "turtledemo", "lib2to3", "distutils"}
    | {"encodings", "pydoc_data"}
)
_SNIFFED = 8192  # bytes of a file looked at to tell text from binary

Tokens = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Corpus:
    """Two texts that share no file, as uint8 tokens: one to train on, one that no peer ever trains on."""

    train: Tokens
    validation: Tokens

    @classmethod
    def load(cls, recipe: DataRecipe, folder: Path = Path()) -> "Corpus":
        """Read the text the recipe names; a relative path begins in ``folder``.

        Raises:
            BadInput: there is no such file or folder, it cannot be read, or it holds no text.
        """
        try:
            return cls._read(recipe, folder)
        except OSError as error:
            raise BadInput(f"data.source: {error.filename or recipe.source}: {error.strerror or error}") from None

    @classmethod
    def _read(cls, recipe: DataRecipe, folder: Path) -> "Corpus":
        root = Path(sysconfig.get_path("stdlib")) if recipe.source == STDLIB else folder / recipe.source
        if root.is_file():
            return cls._split_inside(root, recipe.validation_share)
        names = [
            name
            for name in (_stdlib_files(root) if recipe.source == STDLIB else _text_files(root))
            if not any(fnmatchcase(name, pattern) for pattern in recipe.exclude)
        ]
        if not names:
            raise BadInput(f"data.source: {root}: holds no text files")
        if len(names) == 1:
            return cls._split_inside(root / names[0], recipe.validation_share)
        held_out = _held_out(names, recipe.validation_share)
        return cls(
            train=_join(root / name for name in names if name not in held_out),
            validation=_join(root / name for name in names if name in held_out),
        )

    @classmethod
    def _split_inside(cls, path: Path, validation_share: float) -> "Corpus":
        """One file alone is split at a position: its last share is for validation."""
        tokens = _join([path])
        cut = round(len(tokens) * (1 - validation_share))
        return cls(train=tokens[:cut], validation=tokens[cut:])


class Sampler:
    """The training batches of one peer: its own endless, random-access stream of samples."""

    def __init__(self, tokens: Tokens, seed: int, peer_id: str, batch_size: int, context: int) -> None:
        _require_length(tokens, context, "training")
        self._tokens = tokens
        self._key = _key("train", seed, peer_id)
        self._batch_size = batch_size
        self._context = context

    def batch(self, step: int) -> Batch:
        """The batch of one inner step."""
        random = np.random.Philox(key=self._key, counter=np.array([0, step, 0, 0], dtype=np.uint64))
        starts = random.random_raw(self._batch_size) % np.uint64(len(self._tokens) - self._context)
        return Batch(_windows(self._tokens, starts.astype(np.int64), self._context))


def validation_sequences(tokens: Tokens, seed: int, sequences: int, context: int) -> torch.Tensor:
    """What every peer of a run evaluates on: int64 [n, context + 1], the same for one seed and one text.

    The windows do not overlap, so n is less than `sequences` when the text is too short for as many.
    """
    _require_length(tokens, context, "validation")
    places = (len(tokens) - 1) // context
    order = np.argsort(np.random.Philox(key=_key("validation", seed)).random_raw(places), kind="stable")
    return _windows(tokens, np.sort(order[:sequences]) * context, context)


def _stdlib_files(root: Path) -> list[str]:
    return [name for name in _walk(root, _STDLIB_LEFT_OUT) if name.endswith(".py")]


def _text_files(root: Path) -> list[str]:
    """Every file below the folder that is not hidden and does not start like a binary."""
    if not root.is_dir():
        raise BadInput(f"data.source: {root}: no such file or folder")
    return [name for name in _walk(root, frozenset()) if _is_text(root / name)]


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


def _held_out(names: Sequence[str], share: float) -> set[str]:
    """The names whose hash falls below the share: at least one, and not all."""
    hashes = {name: int.from_bytes(blake3(name.encode("utf-8", "surrogateescape")).digest(8), "big") for name in names}
    by_hash = sorted(names, key=lambda name: (hashes[name], name))
    below = sum(value < share * 2**64 for value in hashes.values())
    return set(by_hash[: min(max(below, 1), len(names) - 1)])


def _join(paths: Iterator[Path] | Sequence[Path]) -> Tokens:
    joined = bytearray()
    for path in paths:
        joined += path.read_bytes()
        joined.append(END_OF_FILE)
    return np.frombuffer(joined, dtype=np.uint8)


def _require_length(tokens: Tokens, context: int, purpose: str) -> None:
    if len(tokens) <= context:
        raise BadInput(
            f"data.source: only {len(tokens)} bytes of {purpose} text; model.context = {context} needs {context + 1}"
        )


def _key(*parts: object) -> npt.NDArray[np.uint64]:
    """The 128-bit Philox key that belongs to a purpose, a seed and perhaps a peer."""
    return np.frombuffer(blake3(repr(parts).encode()).digest(16), dtype="<u8").astype(np.uint64)


def _windows(tokens: Tokens, starts: npt.NDArray[np.int64], context: int) -> torch.Tensor:
    return torch.from_numpy(tokens[starts[:, None] + np.arange(context + 1)].astype(np.int64))
