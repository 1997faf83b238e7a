"""A checkpoint: what a peer needs on its own disk to go on after a restart as if nothing had happened.

It is a folder of three files: two of safetensors, and a JSON file with the numbers, the recipe and the hashes.
``outer.safetensors`` has what all peers share, ``local.safetensors`` the rest. The optimizer's state is JSON, with its
tensors in the local file.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError
from safetensors import numpy as safetensors_numpy
from safetensors import torch as safetensors_torch

from prime_p2p.allreduce.codec import Float32
from prime_p2p.errors import BadInput
from prime_p2p.long_work import Advance, ignore
from prime_p2p.outer.state import OuterState
from prime_p2p.state import tensor_file
from prime_p2p.state.tensor_tree import flatten, unflatten

VERSION = 2
OUTER, LOCAL, NUMBERS = "outer.safetensors", "local.safetensors", "checkpoint.json"
_OPTIMIZER = "optimizer."

DAMAGED = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, SafetensorError)
"""What ``read`` raises for a checkpoint that is not whole."""


@dataclass(frozen=True)
class LocalProgress:
    """What a peer has that the others do not: its own model, its inner optimizer, and how far it is.

    ``parameters`` may be the anchor itself, as they are right after an outer step; they are then not written twice.
    """

    parameters: Float32  # [n], the model's flat parameters
    optimizer: dict[str, Any]  # state_dict() of the inner optimizer; loaded, its tensors are on the CPU
    position: int  # in the data: the caller's own
    tokens: int  # processed since the last commit
    rng_state: torch.Tensor  # torch.get_rng_state()
    cuda_rng_state: torch.Tensor | None = None  # of the device the model is on
    inner_step: int = 0  # since the last outer step was committed or missed
    earlier_steps: int = 0  # inner steps behind the pseudo-gradient, from rounds that were missed
    usual_sizes: tuple[tuple[float, int], ...] = ()  # of pseudo-gradients, as ``UsualSize`` keeps them


@dataclass(frozen=True)
class Checkpoint:
    """The outer state that all peers share, and the local progress since.

    ``run`` and ``description`` (what all peers agree on: the recipe, where there is one) say what it belongs to: in
    another run the state means nothing.
    """

    outer: OuterState
    local: LocalProgress
    run: str = ""
    description: dict[str, Any] = field(default_factory=dict)

    @property
    def anchor(self) -> Float32:
        return self.outer.anchor


class NewerVersion(BadInput):
    """A checkpoint that only a newer version of this program can read."""


class Numbers(BaseModel):
    """What the JSON file says, but for the hash of the local file."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    version: int = VERSION
    run: str
    description: dict[str, Any]
    step: int
    tokens: int
    digest: str  # of the outer state, hexadecimal
    position: int
    tokens_since_commit: int
    inner_step: int
    earlier_steps: int
    usual_sizes: list[list[float]]
    optimizer: Any  # as ``tensor_tree.flatten`` encodes it


def numbers_of(checkpoint: Checkpoint) -> tuple[Numbers, dict[str, torch.Tensor]]:
    """What the JSON file says of a checkpoint, and the tensors of the local file: the checkpoint's own, no copies.

    Raises TypeError for an optimizer state that holds more than tensors and plain values.
    """
    outer, local = checkpoint.outer, checkpoint.local
    optimizer, tensors = flatten(local.optimizer)
    own = {_OPTIMIZER + name: tensor for name, tensor in tensors.items()} | {"rng_state": local.rng_state}
    if local.cuda_rng_state is not None:
        own["cuda_rng_state"] = local.cuda_rng_state
    if local.parameters is not outer.anchor:
        own["parameters"] = torch.from_numpy(local.parameters)
    numbers = Numbers(
        run=checkpoint.run,
        description=checkpoint.description,
        step=outer.step,
        tokens=outer.tokens,
        digest=outer.digest.hex(),
        position=local.position,
        tokens_since_commit=local.tokens,
        inner_step=local.inner_step,
        earlier_steps=local.earlier_steps,
        usual_sizes=[[size, float(steps)] for size, steps in local.usual_sizes],
        optimizer=optimizer,
    )
    return numbers, own


def write_local(folder: Path, tensors: dict[str, torch.Tensor], advance: Advance = ignore) -> None:
    """Write the first of the three files, with what training changes next. Raises OSError."""
    tensor_file.write(folder / LOCAL, tensors, advance)


def write_outer(folder: Path, outer: OuterState, advance: Advance = ignore) -> None:
    """Write the second one, with what stays as it is until the next outer step. Raises OSError."""
    arrays = {"anchor": outer.anchor, "momentum": outer.momentum}
    tensor_file.write(folder / OUTER, {name: torch.from_numpy(array) for name, array in arrays.items()}, advance)


def write_numbers(folder: Path, numbers: Numbers) -> None:
    """Write the last file; all three are on the disk when this returns. Raises OSError."""
    content = numbers.model_dump() | {"local_blake3": _hash_of(folder / LOCAL)}
    text = json.dumps({"blake3": _hash_of_numbers(content), "numbers": content}, indent=1)
    (folder / NUMBERS).write_text(text, encoding="utf-8")
    for name in (OUTER, LOCAL, NUMBERS):
        sync(folder / name)
    sync(folder)


def read(folder: Path, threads: int) -> Checkpoint:
    """The checkpoint in a folder, every byte of it checked.

    Raises NewerVersion, and one of DAMAGED where it is not whole.
    """
    numbers, local_hash = _read_numbers(folder)
    if _hash_of(folder / LOCAL) != local_hash:
        raise ValueError(f"{LOCAL} is damaged")
    arrays = safetensors_numpy.load_file(folder / OUTER)
    outer = OuterState(arrays["anchor"], arrays["momentum"], numbers.step, numbers.tokens, threads)
    if outer.digest.hex() != numbers.digest:
        raise ValueError(f"{OUTER} is damaged: its digest is not that of outer step {numbers.step}")
    own = safetensors_torch.load_file(folder / LOCAL)
    optimizer = {name.removeprefix(_OPTIMIZER): own[name] for name in own if name.startswith(_OPTIMIZER)}
    local = LocalProgress(
        parameters=own["parameters"].numpy() if "parameters" in own else outer.anchor.copy(),
        optimizer=unflatten(numbers.optimizer, optimizer),
        position=numbers.position,
        tokens=numbers.tokens_since_commit,
        rng_state=own["rng_state"],
        cuda_rng_state=own.get("cuda_rng_state"),
        inner_step=numbers.inner_step,
        earlier_steps=numbers.earlier_steps,
        usual_sizes=tuple((size, int(steps)) for size, steps in numbers.usual_sizes),
    )
    return Checkpoint(outer, local, numbers.run, _with_codec(numbers.description))


def _with_codec(description: dict[str, Any]) -> dict[str, Any]:
    """A description with a section ``round`` that names no codec is that of a run of int8."""
    section = description.get("round")
    return description | {"round": {"codec": "int8"} | section} if isinstance(section, dict) else description


def _read_numbers(folder: Path) -> tuple[Numbers, str]:
    content = json.loads((folder / NUMBERS).read_text(encoding="utf-8"))
    numbers = content["numbers"]
    if _hash_of_numbers(numbers) != content["blake3"]:
        raise ValueError(f"{NUMBERS} is damaged")
    version = numbers["version"]
    if isinstance(version, int) and version > VERSION:
        raise NewerVersion(
            f"checkpoint {folder} is of version {version}, and this prime-p2p reads no newer one than {VERSION}; "
            "install the newer prime-p2p again, or give another folder"
        )
    if version != VERSION:
        raise ValueError(f"it is of version {version}, not {VERSION}")
    local_hash = numbers.pop("local_blake3")
    return Numbers.model_validate(numbers), local_hash


def _hash_of_numbers(numbers: dict[str, Any]) -> str:
    return blake3(json.dumps(numbers, sort_keys=True).encode()).hexdigest()


def _hash_of(path: Path) -> str:
    return blake3().update_mmap(path).hexdigest()


def sync(path: Path) -> None:
    """Wait until the file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
