"""The swarm on a terminal: a live table, or plain lines where the output is no terminal."""

from __future__ import annotations

from typing import Protocol, TextIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from prime_p2p.monitor.text import duration
from prime_p2p.monitor.view import FINISHED, LOST, PeerRow, SwarmView

REFRESH_INTERVAL = 0.25  # seconds
_CHROME_LINES = 7  # title, bar, blank, head of the table and its rule, what does not fit, and the cursor's own
# Titles, and the columns of the terminal that each needs to be shown.
_COLUMNS = (("outer", 0), ("inner", 46), ("loss", 30), ("tokens/s", 58), ("group", 66), ("MB sent", 76))
_STATE_STYLES = {
    "training": "green",
    "gathering": "yellow",
    "reducing": "cyan",
    "applying": "cyan",
    FINISHED: "bold",
    LOST: "red",
}


class SwarmConsole(Protocol):
    """Where a swarm is shown; closed by whoever opened it."""

    def tell(self, lines: list[str], now: float) -> None:
        """Say what happened, a line each."""

    def refresh(self, now: float) -> None:
        """Show the newest figures."""

    def close(self, now: float) -> None:
        """Show the last state and give the terminal back."""


def open_console(view: SwarmView, stream: TextIO) -> SwarmConsole:
    """The live table where ``stream`` is a terminal that can redraw, plain lines elsewhere."""
    console = Console(file=stream, highlight=False)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveConsole(view, console)
    return PlainConsole(view, stream)


class PlainConsole:
    """One line an event, with the seconds since the start."""

    def __init__(self, view: SwarmView, stream: TextIO) -> None:
        self._view = view
        self._stream = stream

    def tell(self, lines: list[str], now: float) -> None:
        for line in lines:
            print(f"{self._view.elapsed(now):7.1f} s  {line}", file=self._stream, flush=True)

    def refresh(self, now: float) -> None:
        """Nothing: a log file wants no figures in between."""

    def close(self, now: float) -> None:
        """Nothing: every line is out already."""


class LiveConsole:
    """A table that is redrawn in place; what happens is told above it."""

    def __init__(self, view: SwarmView, console: Console) -> None:
        self._view = view
        self._console = console
        self._drawn = 0.0
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._live.start()

    def tell(self, lines: list[str], now: float) -> None:
        for line in lines:
            self._console.print(Text(f"{self._view.elapsed(now):7.1f} s  {line}"))

    def refresh(self, now: float) -> None:
        if now - self._drawn >= REFRESH_INTERVAL:
            self._draw(now)

    def close(self, now: float) -> None:
        self._draw(now)
        self._live.stop()

    def _draw(self, now: float) -> None:
        self._drawn = now
        width, height = self._console.size
        self._live.update(render(self._view, width, height, now), refresh=True)


def render(view: SwarmView, width: int, height: int, now: float) -> RenderableType:
    """The whole table, at most ``width`` columns and ``height`` lines large."""
    rows = list(view.rows.values())
    room = max(1, height - _CHROME_LINES)
    shown = rows if len(rows) <= room else rows[:room]
    parts: list[RenderableType] = [_headline(view, now), _bar(view, width), Text(), _table(shown, width)]
    if len(shown) < len(rows):
        parts.append(Text(_hidden(rows[room:]), style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def _headline(view: SwarmView, now: float) -> Text:
    left = view.time_left(now)
    there = sum(not row.gone for row in view.rows.values())
    words = [view.title, f"{there} of {len(view.rows)} peers", f"{duration(view.elapsed(now))} elapsed"]
    if left is not None:
        words.append(f"{duration(left)} left")
    return Text("  ".join(words), style="bold", no_wrap=True, overflow="ellipsis")


def _bar(view: SwarmView, width: int) -> Table:
    grid = Table.grid(padding=(0, 1))
    step = min(view.outer_step, view.goal)
    label = f"outer step {step}/{view.goal}"
    share = f"{100 * step / max(1, view.goal):.0f} %"
    room = max(8, min(60, width - len(label) - len(share) - 3))
    grid.add_row(label, ProgressBar(total=max(1, view.goal), completed=step, width=room), share)
    return grid


def _table(rows: list[PeerRow], width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False, pad_edge=False, header_style="dim")
    titles = [title for title, least in _COLUMNS if width >= least]
    table.add_column("peer", no_wrap=True)
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True, overflow="ellipsis")
    for row in rows:
        figures = _figures(row)
        state = Text(row.state, style=_STATE_STYLES.get(row.state, ""))
        table.add_row(Text(row.name), *(figures[title] for title in titles), state)
    return table


def _figures(row: PeerRow) -> dict[str, str]:
    return {
        "outer": str(row.outer_step),
        "inner": f"{row.inner_step}/{row.inner_steps}" if row.inner_steps else "-",
        "loss": "-" if row.loss is None else f"{row.loss:.4f}",
        "tokens/s": f"{row.tokens_per_second:,.0f}",
        "group": str(row.group_size),
        "MB sent": f"{row.bytes_sent / 1e6:.1f}",
    }


def _hidden(rows: list[PeerRow]) -> str:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.state] = counts.get(row.state, 0) + 1
    return f"and {len(rows)} more: " + ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
