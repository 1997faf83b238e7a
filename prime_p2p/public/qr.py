"""A QR code in a terminal, or on a page."""

from __future__ import annotations

import io

import segno


def qr_code(text: str) -> str:
    """``text`` as a QR code of block characters, for a terminal with a dark or light background."""
    drawn = io.StringIO()
    segno.make(text, error="l", micro=False).terminal(drawn, border=2, compact=True)
    return drawn.getvalue().rstrip("\n")


def qr_drawing(text: str) -> str:
    """``text`` as a QR code of class ``qr``, in SVG that stands in a page; its background is the page's, and has to be
    light."""
    code = segno.make(text, error="l", micro=False)
    drawing: str = code.svg_inline(omitsize=True, border=2, title="QR code", svgclass="qr", lineclass=None)
    return drawing
