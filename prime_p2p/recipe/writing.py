"""A recipe as TOML, from which reading makes the same recipe."""

import json
from collections.abc import Mapping
from typing import Any

_ESCAPED = {'"': '\\"', "\\": "\\\\"}


def written(table: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections of plain values: text, numbers, truth, and lists of those. What is None is left out: it has no form.

    All of it is printable, whoever wrote the texts.
    """
    return "\n\n".join(
        "\n".join([f"[{section}]", *(f"{key} = {_value(value)}" for key, value in keys.items() if value is not None)])
        for section, keys in table.items()
    )


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return f'"{"".join(map(_character, value))}"' if isinstance(value, str) else json.dumps(value)


def _character(one: str) -> str:
    return _ESCAPED.get(one) or (one if one.isprintable() else f"\\U{ord(one):08X}")
