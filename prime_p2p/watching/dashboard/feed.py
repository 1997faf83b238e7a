"""Pages that change: each part is rendered once for all who read it, and sent to them when it has changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b


@dataclass(frozen=True)
class Part:
    """The HTML of a part of a page; equal ones have one ``mark``. ``message`` is what a browser is sent."""

    mark: str
    html: str
    message: bytes

    @classmethod
    def of(cls, name: str, html: str) -> Part:
        mark = blake2b(html.encode(), digest_size=8).hexdigest()
        told = json.dumps({"part": name, "mark": mark, "html": html})  # all of it ASCII, and in one line
        return cls(mark, html, f"data: {told}\n\n".encode())


class Feed:
    """Renders pages when they are asked for, at most once between two turns; ``render`` gives the parts of a page by
    its name, or None where there is no such page."""

    def __init__(self, render: Callable[[str], Mapping[str, str] | None]) -> None:
        self._render = render
        self._pages: dict[str, dict[str, Part]] = {}
        self._before: dict[str, dict[str, Part]] = {}
        self._turn = asyncio.Event()

    def page(self, name: str) -> Mapping[str, Part] | None:
        """The parts of a page as they are in this turn."""
        if name not in self._pages:
            rendered = self._render(name)
            if rendered is None:
                return None
            known = self._before.get(name, {})
            self._pages[name] = {part: _same_or_new(known.get(part), part, html) for part, html in rendered.items()}
        return self._pages[name]

    def turn(self) -> None:
        """Something has changed: whoever waits looks again."""
        self._before, self._pages = self._pages, {}
        turned, self._turn = self._turn, asyncio.Event()
        turned.set()

    async def turned(self) -> None:
        """Wait for the next turn."""
        await self._turn.wait()


def _same_or_new(known: Part | None, name: str, html: str) -> Part:
    return known if known is not None and known.html == html else Part.of(name, html)


class Reader:
    """What one reader of a page has been sent."""

    def __init__(self, feed: Feed, page: str) -> None:
        self._feed = feed
        self._page = page
        self._marks: dict[str, str] = {}

    def news(self) -> bytes | None:
        """What it lacks, as messages; None where the page is there no more."""
        shown = self._feed.page(self._page)
        if shown is None:
            return None
        lacking = {name: part for name, part in shown.items() if self._marks.get(name) != part.mark}
        self._marks |= {name: part.mark for name, part in lacking.items()}
        return b"".join(part.message for part in lacking.values())
