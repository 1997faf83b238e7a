"""A QR code in a terminal."""

from __future__ import annotations

import io

import segno


def qr_code(text: str) -> str:
    """``text`` as a QR code of block characters, for a terminal with a dark or light background."""
    drawn = io.StringIO()
    segno.make(text, error="l", micro=False).terminal(drawn, border=2, compact=True)
    return drawn.getvalue().rstrip("\n")
