"""What happened, the newest last."""

from __future__ import annotations

import time

from rich.text import Text
from textual.widgets import RichLog

from prime_p2p.watching.view import MOST_EVENTS, RunView, newer

_STYLES = {
    "joined": "green",
    "left": "dim",
    "lost": "red",
    "retried": "yellow",
    "missed": "yellow",
    "dropped": "yellow",
    "fork": "bold red",
    "healed": "bold green",
}


class Events(RichLog):
    """A line each; scrolls back through those that are kept."""

    def __init__(self, *, id: str) -> None:
        super().__init__(max_lines=MOST_EVENTS, min_width=1, markup=False, highlight=False, id=id)
        self._told = 0

    def on_mount(self) -> None:
        self.border_title = "events"

    def show_run(self, view: RunView) -> None:
        for event in newer(view.events, self._told):
            line = Text(no_wrap=True, overflow="ellipsis")
            line.append(time.strftime("%H:%M:%S  ", time.localtime(event.at)), "dim")
            line.append(event.text, _STYLES.get(event.kind, ""))
            self.write(line)
            self._told = event.number
