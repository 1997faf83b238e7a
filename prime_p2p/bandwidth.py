"""Bandwidths as people write them: ``500Mbit``, ``4 Gbit/s``, or a plain number of Mbit/s."""

from __future__ import annotations

import re

from prime_p2p.errors import BadInput

_LARGEST = 1e9  # Mbit/s
_MBIT_OF = {"": 1.0, "kbit": 1e-3, "mbit": 1.0, "gbit": 1e3}
_WRITTEN = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)(?:/s)?", re.ASCII)


def parse_bandwidth(text: str, name: str = "--bandwidth") -> float:
    """Mbit/s. ``name`` is what the text was given as.

    Raises:
        BadInput: It is no bandwidth above 0.
    """
    written = _WRITTEN.fullmatch(text.strip().lower())
    if written is None or written[2] not in _MBIT_OF:
        raise BadInput(f"{name} {text!r}: must be a number of Mbit/s, or have a unit of bits, as in 500Mbit or 4Gbit")
    mbit = float(written[1]) * _MBIT_OF[written[2]]
    if not 0 < mbit <= _LARGEST:
        raise BadInput(f"{name} {text!r}: must be above 0, and at most 1e9 Mbit/s")
    return mbit


def written_bandwidth(mbit: float) -> str:
    """Mbit/s as ``parse_bandwidth`` reads it, to three digits."""
    for unit, size in (("Gbit", 1e3), ("Mbit", 1.0)):
        if mbit >= size:
            return f"{float(f'{mbit / size:.3g}'):g}{unit}"
    return f"{float(f'{mbit * 1e3:.3g}'):g}kbit"
