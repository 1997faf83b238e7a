"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table; rows may be shorter than its head."""
    lines = [head, ["---"] * len(head), *([*row, *[""] * (len(head) - len(row))] for row in rows)]
    return ["| " + " | ".join(line) + " |" for line in lines]


def shown(value: float | None, form: str, unit: float = 1.0) -> str:
    """A number in a unit; nothing for None."""
    return "" if value is None else format(value / unit, form)
