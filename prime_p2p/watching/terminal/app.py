"""The application: draws the screen on top again where something has changed, twice a second at most."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from prime_p2p.network import clock
from prime_p2p.watching.terminal.peer_screen import PeerScreen
from prime_p2p.watching.terminal.run_screen import RunScreen
from prime_p2p.watching.view import RunView

EVERY = 0.5  # seconds between two looks at whether to draw
AT_LEAST_EVERY = 1.0  # seconds: what is shown of "last seen"


class WatchApp(App[None]):
    """Shows a view that somebody else keeps up to date, in the same loop."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(self, view: RunView, now: Callable[[], float] = clock.now) -> None:
        super().__init__()
        self.title = f"prime-p2p watch {view.name}"
        self.animation_level = "none"  # over a slow link every drawing counts
        self._view = view
        self._time = now
        self._drawn = (-1, 0.0)  # the version of the view, and when

    def on_mount(self) -> None:
        self.push_screen(RunScreen(self._view, self._time))
        self.set_interval(EVERY, self._draw_where_it_has_changed)

    def _draw_where_it_has_changed(self) -> None:
        (version, at), now = self._drawn, self._time()
        if isinstance(self.screen, RunScreen | PeerScreen) and (
            version != self._view.version or now - at >= AT_LEAST_EVERY
        ):
            self._drawn = self._view.version, now
            self.screen.redraw()
