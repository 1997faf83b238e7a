"""The keys, and what the columns are."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

_TEXT = """\
s        sort by the next column        enter    open the peer at the cursor
r        the other way round            e        larger list of events
/        filter by name, id or phase    q        end
esc      show all again, or go back     tab      to the events, to scroll them

step     outer steps that its state holds
inner    inner steps since then, of those until the next outer step
loss     of its last inner step
tok/s    tokens a second in its last inner step
up, dn   bytes a second that it sent and received over its last outer step
grp      peers in its last group
phase    what it does, "left", or "lost": gone without a word
digest   of its state; ! where most at its outer step hold another one
seen     since it last said something
"""


class HelpScreen(ModalScreen[None]):
    """Goes away with any of the keys one tries."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,question_mark,q,enter", "app.pop_screen", "back")]
    CSS = """
    HelpScreen { align: center middle; }
    HelpScreen > VerticalScroll { width: 80; max-width: 100%; height: auto; max-height: 100%; border: solid $primary;
                                  background: $surface; }
    """

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(Text(_TEXT), markup=False)
