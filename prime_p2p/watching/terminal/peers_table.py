"""The peers, a line each. Only the lines that are seen are made, and only cells that have changed are drawn again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from prime_p2p.watching.figures import Column, columns_for
from prime_p2p.watching.terminal.lines import STATE_STYLES
from prime_p2p.watching.view import PeerView

_HEAD = 1  # lines


class PeersTable(ScrollView, can_focus=True):
    """Peers in a given order, below a line of titles. The cursor stays with its peer, unless it is at the top."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open peer"),
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {"peers-table--titles", "peers-table--cursor"}
    DEFAULT_CSS = """
    PeersTable > .peers-table--titles { text-style: bold; color: $text-muted; }
    PeersTable > .peers-table--cursor { background: $primary; color: $text; }
    """

    @dataclass
    class Opened(Message):
        """Somebody wants to see more of a peer."""

        peer_id: str

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._peers: Sequence[PeerView] = ()
        self._at = 0.0
        self._shown_columns: list[Column] = []
        self._titles = ""
        self._cursor = 0
        self._drawn: dict[int, list[tuple[str, str]]] = {}  # cells by row, as they are on the screen

    @property
    def shown(self) -> list[str]:
        """The peer ids, in the order of the lines."""
        return [peer.peer_id for peer in self._peers]

    @property
    def selected(self) -> str | None:
        """The id of the peer that the cursor is at."""
        return self._peers[self._cursor].peer_id if self._peers else None

    @property
    def _width(self) -> int:
        return self.size.width - self.styles.scrollbar_size_vertical

    def show_peers(self, peers: Sequence[PeerView], now: float, sorted_by: str, reverse: bool) -> None:
        """Show these peers, whose order is by the column with this title."""
        selected, before = self.selected, len(self._peers)
        self._peers, self._at = peers, now
        self._shown_columns = columns_for(self._width)
        titles = "".join(
            _mark(column, sorted_by, reverse) + column.cell(column.title) for column in self._shown_columns
        )
        if titles != self._titles or len(peers) != before:
            self._titles = titles
            self.virtual_size = Size(self._width, len(peers) + _HEAD)
            self.refresh()
        else:
            self._refresh_changed_cells()
        places = {peer.peer_id: place for place, peer in enumerate(peers)}
        self._set_cursor(places.get(selected or "", self._cursor) if self._cursor else 0)

    def _refresh_changed_cells(self) -> None:
        top = self.scroll_offset.y
        ends = list(accumulate(column.width + 1 for column in self._shown_columns))
        for row in range(top, min(top + self.size.height - _HEAD, len(self._peers))):
            drawn, cells = self._drawn.get(row, []), self._cells(row)
            if len(drawn) != len(cells):
                self.refresh(Region(0, row - top + _HEAD, self.size.width, 1))
                continue
            for column, end, old, new in zip(self._shown_columns, ends, drawn, cells, strict=True):
                if old != new:
                    self.refresh(Region(end - column.width - 1, row - top + _HEAD, column.width + 1, 1))

    def _cells(self, row: int) -> list[tuple[str, str]]:
        """Text and style of each column."""
        peer = self._peers[row]
        return [
            (" " + column.cell(column.text(peer, self._at)), _style(peer, column)) for column in self._shown_columns
        ]

    def render_line(self, y: int) -> Strip:
        """A line as textual asks for it, the titles first."""
        base, row = self.rich_style, y - _HEAD + self.scroll_offset.y
        if y < _HEAD:
            titles = Segment(self._titles, base + self.get_component_rich_style("peers-table--titles", partial=True))
            return Strip([titles]).adjust_cell_length(self.size.width, base)
        if row >= len(self._peers):
            return Strip.blank(self.size.width, base)
        self._drawn[row] = cells = self._cells(row)
        if row == self._cursor:  # in its own colours, on which those of the cells could not be read
            base += self.get_component_rich_style("peers-table--cursor", partial=True)
            cells = [(text, "") for text, _ in cells]
        segments = [Segment(text, base + Style.parse(style)) for text, style in cells]
        return Strip(list(Segment.simplify(segments))).adjust_cell_length(self.size.width, base)

    # ---- the cursor

    def _set_cursor(self, row: int) -> None:
        row = max(0, min(row, len(self._peers) - 1))
        if row == self._cursor:
            return
        self._cursor = row
        self.refresh()
        rows = self.size.height - _HEAD
        if not self.scroll_offset.y <= row < self.scroll_offset.y + rows:
            top = row if row < self.scroll_offset.y else row - rows + 1
            self.scroll_to(y=top, animate=False, force=True)

    def action_move(self, lines: int) -> None:
        self._set_cursor(self._cursor + lines)

    def action_page(self, pages: int) -> None:
        self._set_cursor(self._cursor + pages * (self.size.height - _HEAD))

    def action_open(self) -> None:
        if self.selected is not None:
            self.post_message(self.Opened(self.selected))

    def on_click(self, event: Click) -> None:
        if event.y >= _HEAD:
            self._set_cursor(event.y - _HEAD + self.scroll_offset.y)


def _mark(column: Column, sorted_by: str, reverse: bool) -> str:
    if column.title != sorted_by:
        return " "
    return "▴" if column.largest_first is reverse else "▾"


def _style(peer: PeerView, column: Column) -> str:
    if column.title == "digest" and peer.odd:
        return "bold red"
    return STATE_STYLES.get(peer.state, "") if column.title == "phase" else "dim" if peer.gone else ""
