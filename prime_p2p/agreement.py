"""Where two descriptions of a run differ, and how a value of one is shown on a line."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any


def first_difference(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    """Name the first key in which two `Recipe.shared` values differ, with both values; None if they agree.

    `theirs` may come from anywhere: whatever it holds, the answer is one short line.
    """
    here, there = dict(_leaves(mine)), dict(_leaves(theirs))
    for key in [*here, *(key for key in there if key not in here)]:
        own, other = here.get(key, _NOT_SET), there.get(key, _NOT_SET)
        if own != other:
            return f"{key}: {shown(own)} here, {shown(other)} there"
    return None


class _NotSet:
    def __repr__(self) -> str:
        return "not set"


_NOT_SET = _NotSet()


def _leaves(shared: Mapping[str, Any], depth: int = 3) -> Iterator[tuple[str, Any]]:
    """The values of a table and its tables, as in model.config.hidden_size: no recipe has deeper ones."""
    for key, value in shared.items():
        if isinstance(value, Mapping) and depth > 1:
            yield from ((f"{plain(key)}.{inner}", leaf) for inner, leaf in _leaves(value, depth - 1))
        else:
            yield plain(key), value


def plain(key: object) -> str:
    """A key as it is, unless somebody sent one that would not print on one line."""
    return key if isinstance(key, str) and key.isidentifier() and len(key) <= 64 else reprlib.repr(key)


def shown(value: object) -> str:
    """A value as TOML writes it, cut to a length that fits one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value if len(value) <= 64 else value[:61] + "...")
    return reprlib.repr(value)
