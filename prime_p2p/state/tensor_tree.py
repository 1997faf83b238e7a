"""A nest of dicts, lists and tensors, such as an optimizer's state, as JSON and a flat dict of tensors: no pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def flatten(tree: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """What ``json.dumps`` takes, and the tensors it refers to: those of the tree themselves, no copies.

    Lists stand for themselves; other containers and tensors become an object with one key that says what it is. Keys of
    dicts need not be strings. Raises TypeError for what is no dict, list, tuple, tensor, str, number, bool or None.
    """
    flat = _Flat()
    return flat.encode(tree), flat.tensors


def unflatten(encoded: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The nest that ``flatten`` was given. Raises ValueError, TypeError or KeyError for what it never returns."""
    if isinstance(encoded, list):
        return [unflatten(item, tensors) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    ((kind, content),) = encoded.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "tuple":
        return tuple(unflatten(item, tensors) for item in content)
    if kind == "dict":
        return {unflatten(key, tensors): unflatten(value, tensors) for key, value in content}
    raise ValueError(f"no such kind of container: {kind}")


class _Flat:
    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}  # of tensors by id, so that one that occurs twice is written once

    def encode(self, tree: Any) -> Any:
        if tree is None or isinstance(tree, (bool, int, float, str)):
            return tree
        if isinstance(tree, list):
            return [self.encode(item) for item in tree]
        if isinstance(tree, tuple):
            return {"tuple": [self.encode(item) for item in tree]}
        if isinstance(tree, dict):
            return {"dict": [[self.encode(key), self.encode(value)] for key, value in tree.items()]}
        if isinstance(tree, torch.Tensor):
            return {"tensor": self._name(tree)}
        raise TypeError(f"a {type(tree).__name__} cannot be written to a checkpoint")

    def _name(self, tensor: torch.Tensor) -> str:
        name = self._names.get(id(tensor))
        if name is None:
            name = self._names[id(tensor)] = str(len(self.tensors))
            self.tensors[name] = tensor
        return name
