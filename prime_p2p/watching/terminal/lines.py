"""Text that is drawn again only where it has changed."""

from __future__ import annotations

from rich.text import Text
from textual.widgets import Static

STATE_STYLES = {
    "training": "green",
    "gathering": "yellow",
    "reducing": "cyan",
    "applying": "cyan",
    "lost": "red",
    "left": "dim",
}


class Lines(Static):
    """Lines of text. They are never read as markup, since some of them are what other peers wrote."""

    def __init__(self, *, id: str) -> None:
        super().__init__(markup=False, id=id)
        self._shown = Text()

    def show(self, text: Text) -> None:
        """Show this from now on."""
        if text != self._shown:
            self._shown = text
            self.update(text)
