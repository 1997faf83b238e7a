"""The whole run on one screen, which is of use from 80 columns by 24 lines on."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import Screen
from textual.widgets import Footer, Input

from prime_p2p.watching.figures import COLUMNS, columns_for, in_order, matches
from prime_p2p.watching.terminal.events import Events
from prime_p2p.watching.terminal.headline import Headline
from prime_p2p.watching.terminal.help_screen import HelpScreen
from prime_p2p.watching.terminal.losses import Losses
from prime_p2p.watching.terminal.peer_screen import PeerScreen
from prime_p2p.watching.terminal.peers_table import PeersTable
from prime_p2p.watching.terminal.phases import Phases
from prime_p2p.watching.view import RunView


class RunScreen(Screen[None]):
    """Peers, phases, losses and events."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("s", "sort", "sort"),
        ("r", "reverse", "reverse"),
        Binding("slash", "filter", "filter", priority=True),  # so that what is typed after it is for the field
        ("e", "events", "events"),
        ("question_mark", "help", "help"),
        ("escape", "all"),
    ]
    CSS = """
    Lines { text-wrap: nowrap; text-overflow: ellipsis; }
    Headline { height: 1; background: $primary-darken-2; }
    #filter { height: 1; border: none; padding: 0 1; display: none; }
    #peers { height: 1fr; scrollbar-size-vertical: 1; overflow-x: hidden; }
    #middle { height: 6; }
    #phases { width: 32; height: 6; border-top: solid $primary; }
    #losses { width: 1fr; height: 6; border-top: solid $primary; }
    #events { height: 5; border-top: solid $primary; scrollbar-size-vertical: 1; overflow-x: hidden; }
    RunScreen.events #middle { display: none; }
    RunScreen.events #events { height: 2fr; }
    """

    def __init__(self, view: RunView, now: Callable[[], float]) -> None:
        super().__init__()
        self._view = view
        self._time = now
        self._column = next(column for column in COLUMNS if column.title == "step")
        self._reverse = False

    def compose(self) -> ComposeResult:
        yield Headline(id="headline")
        yield Input(placeholder="part of a name, an id or a phase; Esc shows all", id="filter")
        yield PeersTable(id="peers")
        with Horizontal(id="middle"):
            yield Phases(id="phases")
            yield Losses(id="losses")
        yield Events(id="events")
        yield Footer()

    def on_mount(self) -> None:
        self._table.focus()

    def on_resize(self) -> None:
        self.call_after_refresh(self.redraw)

    def on_screen_resume(self) -> None:
        self.call_after_refresh(self.redraw)

    @property
    def _table(self) -> PeersTable:
        return self.query_one(PeersTable)

    @property
    def _wanted(self) -> str:
        return self.query_one(Input).value

    def redraw(self) -> None:
        """Show what is known."""
        if not self.query(PeersTable):
            return  # nothing is there yet, or any more
        view, now = self._view, self._time()
        wanted = [peer for peer in view.peers.values() if matches(peer, self._wanted)]
        peers = in_order(wanted, self._column, self._reverse, now)
        self._table.show_peers(peers, now, self._column.title, self._reverse)
        self.query_one(Headline).show_run(view)
        self.query_one(Phases).show_run(view)
        self.query_one(Losses).show_run(view)
        self.query_one(Events).show_run(view)

    # ---- keys

    def action_sort(self) -> None:
        """Sort by the next column that is shown."""
        shown = [column.title for column in columns_for(self._table.size.width)]
        place = shown.index(self._column.title) + 1 if self._column.title in shown else 0
        title = shown[place % len(shown)]
        self._column = next(column for column in COLUMNS if column.title == title)
        self._reverse = False
        self.redraw()

    def action_reverse(self) -> None:
        self._reverse = not self._reverse
        self.redraw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """In the field the key is a letter."""
        return not (action == "filter" and self.query_one(Input).has_focus)

    def action_filter(self) -> None:
        field = self.query_one(Input)
        field.display = True
        self.set_focus(field)

    def on_input_changed(self) -> None:
        self.redraw()

    def on_input_submitted(self) -> None:
        self.query_one(Input).display = bool(self._wanted)
        self.set_focus(self._table)

    def action_all(self) -> None:
        """Show all peers again."""
        field = self.query_one(Input)
        field.value = ""
        field.display = False
        self.set_focus(self._table)

    def action_events(self) -> None:
        self.toggle_class("events")

    def on_peers_table_opened(self, opened: PeersTable.Opened) -> None:
        self.app.push_screen(PeerScreen(self._view, opened.peer_id, self._time))

    def action_help(self) -> None:
        self.app.push_screen(HelpScreen())
