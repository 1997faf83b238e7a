"""Checkpoints: what a peer needs on its own disk to go on after a restart as if nothing had happened.

One folder a checkpoint, ``000017-step-42``: the seventeenth that was saved, at outer step 42. The newest is the one
saved last: a peer that moves to another lineage may go back to an earlier outer step. A folder holds two safetensors
files and a JSON file with the numbers, the shape of the optimizer's state, and the hashes.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError
from safetensors import numpy as safetensors_numpy
from safetensors import torch as safetensors_torch

from prime_p2p.allreduce.codec import Float32
from prime_p2p.outer.state import OuterState
from prime_p2p.state.tensor_tree import flatten, unflatten

log = logging.getLogger(__name__)

_NAME = re.compile(r"(\d{6,})-step-\d+")
_OUTER, _LOCAL, _NUMBERS = "outer.safetensors", "local.safetensors", "checkpoint.json"
_OPTIMIZER = "optimizer."


@dataclass(frozen=True)
class LocalProgress:
    """What a peer has that the others do not: its own model, its inner optimizer, and how far it is."""

    parameters: Float32  # [n], the model's flat parameters
    optimizer: dict[str, Any]  # state_dict() of the inner optimizer; loaded, its tensors are on the CPU
    inner_step: int  # inner steps made in the whole run
    tokens: int  # processed since the last commit
    rng_state: torch.Tensor  # torch.get_rng_state()


@dataclass(frozen=True)
class Checkpoint:
    """The outer state that all peers share, and the local progress since.

    ``run`` and ``description`` (a hash, hexadecimal) say what it belongs to: in another run the state means nothing.
    """

    outer: OuterState
    local: LocalProgress
    run: str = ""
    description: str = ""

    @property
    def anchor(self) -> Float32:
        return self.outer.anchor


class _Numbers(BaseModel):
    """The content of the JSON file."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    version: int = 1
    run: str
    description: str
    step: int
    tokens: int
    digest: str  # of the outer state, hexadecimal
    inner_step: int
    tokens_since_commit: int
    optimizer: Any  # as ``tensor_tree.flatten`` encodes it
    local_blake3: str

    def hash(self) -> str:
        return blake3(json.dumps(self.model_dump(), sort_keys=True).encode()).hexdigest()


class Checkpoints:
    """The newest ``keep`` checkpoints in ``directory``, which belongs to one peer process at a time."""

    def __init__(self, directory: Path, keep: int = 2, threads: int = 1) -> None:
        """``threads`` is how many the hashing of a loaded state, and its later outer steps, may use."""
        self._directory = directory
        self._keep = keep
        self._threads = threads

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, on the disk when this returns, and remove what is too old then; returns its folder.

        Holds the outer state's lock while its arrays are written. A crash at any moment leaves the older checkpoints
        whole. Raises OSError, with nothing changed, where it cannot be written; TypeError for an optimizer state that
        holds more than tensors and plain values.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        for left_over in self._directory.glob("*.partial"):
            shutil.rmtree(left_over)
        older = self._folders()
        number = _number(older[-1]) + 1 if older else 1
        folder = self._directory / f"{number:06d}-step-{checkpoint.outer.step}"
        partial = folder.with_suffix(".partial")
        try:
            partial.mkdir()
            _write(partial, checkpoint)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        partial.rename(folder)
        _sync(self._directory)
        for old in [*older, folder][: -self._keep]:
            # Renamed first: a folder that is half removed must not look like a checkpoint.
            shutil.rmtree(old.rename(old.with_suffix(".partial")))
        return folder

    def load_newest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, None where there is none; each damaged one on the way is logged."""
        for folder in reversed(self._folders()):
            try:
                return _read(folder, self._threads)
            except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
                log.warning("checkpoint %s cannot be used: %s", folder, " ".join(str(error).split()))
        return None

    def _folders(self) -> list[Path]:
        """The folders of the checkpoints, oldest first."""
        if not self._directory.is_dir():
            return []
        return sorted((path for path in self._directory.iterdir() if _NAME.fullmatch(path.name)), key=_number)


def _number(folder: Path) -> int:
    return int(folder.name.partition("-")[0])


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    outer, local = checkpoint.outer, checkpoint.local
    optimizer, tensors = flatten(local.optimizer)
    own = {"parameters": torch.from_numpy(local.parameters), "rng_state": local.rng_state}
    own |= {_OPTIMIZER + name: tensor for name, tensor in tensors.items()}
    try:
        with outer.lock:
            step, tokens, digest = outer.step, outer.tokens, outer.digest
            safetensors_numpy.save_file({"anchor": outer.anchor, "momentum": outer.momentum}, folder / _OUTER)
        safetensors_torch.save_file(own, folder / _LOCAL)
    except SafetensorError as error:
        raise OSError(f"{folder} cannot be written: {error}") from error
    numbers = _Numbers(
        run=checkpoint.run,
        description=checkpoint.description,
        step=step,
        tokens=tokens,
        digest=digest.hex(),
        inner_step=local.inner_step,
        tokens_since_commit=local.tokens,
        optimizer=optimizer,
        local_blake3=_hash_of(folder / _LOCAL),
    )
    content = {"blake3": numbers.hash(), "numbers": numbers.model_dump()}
    (folder / _NUMBERS).write_text(json.dumps(content, indent=1), encoding="utf-8")
    for name in (_OUTER, _LOCAL, _NUMBERS):
        _sync(folder / name)
    _sync(folder)


def _read(folder: Path, threads: int) -> Checkpoint:
    content = json.loads((folder / _NUMBERS).read_text(encoding="utf-8"))
    numbers = _Numbers.model_validate(content["numbers"])
    if numbers.version != 1:
        raise ValueError(f"it is of version {numbers.version}, not 1")
    if numbers.hash() != content["blake3"]:
        raise ValueError(f"{_NUMBERS} is damaged")
    if _hash_of(folder / _LOCAL) != numbers.local_blake3:
        raise ValueError(f"{_LOCAL} is damaged")
    arrays = safetensors_numpy.load_file(folder / _OUTER)
    outer = OuterState(arrays["anchor"], arrays["momentum"], numbers.step, numbers.tokens, threads)
    if outer.digest.hex() != numbers.digest:
        raise ValueError(f"{_OUTER} is damaged: its digest is not that of outer step {numbers.step}")
    own = safetensors_torch.load_file(folder / _LOCAL)
    optimizer = {name.removeprefix(_OPTIMIZER): own[name] for name in own if name.startswith(_OPTIMIZER)}
    local = LocalProgress(
        parameters=own["parameters"].numpy(),
        optimizer=unflatten(numbers.optimizer, optimizer),
        inner_step=numbers.inner_step,
        tokens=numbers.tokens_since_commit,
        rng_state=own["rng_state"],
    )
    return Checkpoint(outer, local, numbers.run, numbers.description)


def _hash_of(path: Path) -> str:
    return blake3().update_mmap(path).hexdigest()


def _sync(path: Path) -> None:
    """Wait until the file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
