"""The documents around the parts: what a browser is given first, before the parts are kept up to date."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from urllib.parse import quote

from prime_p2p.watching.dashboard.feed import Part

_PAIRS = {"speed": "crowd", "phases": "traffic", "contributions": "events"}  # parts that stand beside each other
_HEADLINE = "headline"


def run_document(title: str, shown: Mapping[str, Part]) -> str:
    """The page of a run."""
    return _document(title, shown, root="", events="events", back="")


def peer_document(title: str, run: str, peer_id: str, shown: Mapping[str, Part]) -> str:
    """The page of a peer."""
    back = f'<nav><a href="../">← run {escape(run)}</a></nav>'
    return _document(title, shown, root="../", events=f"../events?peer={quote(peer_id, safe='')}", back=back)


def _document(title: str, shown: Mapping[str, Part], root: str, events: str, back: str) -> str:
    beside = {second for first, second in _PAIRS.items() if first in shown}
    rest = [name for name in shown if name != _HEADLINE and name not in beside]
    body = "\n".join(_beside(name, shown) for name in rest)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<title>{escape(title)}</title><link rel="icon" href="{root}icon.svg"><link rel="stylesheet"'
        f' href="{root}style.css"><script src="{root}live.js" defer></script></head>'
        f'<body data-events="{escape(events)}"><p class="banner" role="status" hidden></p><main>{back}'
        f"<header>{_part(_HEADLINE, shown[_HEADLINE])}</header>{body}"
        "<footer>What peers say of themselves is shown as they say it."
        f' <a href="{root}api/run">Data as JSON</a></footer>'
        "</main></body></html>\n"
    )


def _beside(name: str, shown: Mapping[str, Part]) -> str:
    other = _PAIRS.get(name, "")
    if other not in shown:
        return _part(name, shown[name])
    return f'<div class="pair">{_part(name, shown[name])}{_part(other, shown[other])}</div>'


def _part(name: str, part: Part) -> str:
    return f'<div class="part" id="{name}" data-mark="{part.mark}">{part.html}</div>'
