"""Text for a terminal, some of which strangers wrote."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

_LONGEST = 400  # characters of a text that somebody else wrote


def printable(text: str, longest: int = _LONGEST) -> str:
    """``text`` in one line of at most ``longest`` characters, all of which are ``visible``."""
    line = " ".join(text.split())
    return visible(line if len(line) <= longest else line[: longest - 1] + "…")


def visible(text: str) -> str:
    """``text`` without the control characters that move a terminal's cursor or change its colours."""
    return "".join(character if character.isprintable() else "�" for character in text)


def duration(seconds: float) -> str:
    """Seconds as people read a clock: 0:42, 12:05 or 3:07:30."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def size(count: float) -> str:
    """Bytes to three digits: 865 kB, 75.3 MB or 1.03 TB."""
    power = min(4, max(1, int(math.log10(count)) // 3)) if count >= 1000 else 1
    value = count / 1000**power
    digits = max(0, 2 - int(math.log10(value))) if value >= 1 else 2
    return f"{value:.{digits}f} {('kB', 'MB', 'GB', 'TB')[power - 1]}"


def status_table(heartbeats: Sequence[Mapping[str, Any]]) -> str:
    """The peers of runs, a line each, furthest first; ``heartbeats`` as ``swarm.membership.status`` gives them."""
    if not heartbeats:
        return "no peer is there"
    order = sorted(heartbeats, key=lambda beat: (beat["run"], -beat["outer_step"], beat["peer_id"]))
    return aligned([_HEADS, *(_status_row(beat) for beat in order)], _NUMBERS)


_HEADS = ("run", "peer", "step", "state", "seen", "tokens", "digest", "address")
_NUMBERS = ("step", "seen", "tokens")


def _status_row(beat: Mapping[str, Any]) -> tuple[str, ...]:
    texts = (
        beat["run"],
        beat["name"] or f"…{beat['peer_id'][-8:]}",
        str(beat["outer_step"]),
        beat["state"],
        f"{beat['age_s']:.0f} s",
        f"{beat['tokens']:,}",
        beat["digest"][:8],
        beat["addresses"][0] if beat["addresses"] else "",
    )
    return tuple(printable(text) for text in texts)


def aligned(rows: Sequence[Sequence[str]], numbers: Sequence[str] = ()) -> str:
    """Rows in columns, the first of them heads; those of ``numbers`` are aligned to the right."""
    heads = rows[0]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            text.rjust(width) if head in numbers else text.ljust(width)
            for head, text, width in zip(heads, row, widths, strict=True)
        ).rstrip()
        for row in rows
    )
