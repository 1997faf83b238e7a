"""One peer: who it is, what it does, and its last outer steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer

from prime_p2p.monitor.metrics import PHASES, RoundMetrics
from prime_p2p.watching.figures import ago, compact
from prime_p2p.watching.terminal.lines import Lines
from prime_p2p.watching.view import PeerView, RunView

_STEPS = 50  # outer steps that are shown
_EVENTS = 10
_HEAD = "  step   loss grp try   tok  sent  recv inner gather reduce commit apply total"


class PeerScreen(Screen[None]):
    """Scrolls where there is more than fits."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "app.pop_screen", "back")]
    CSS = "#peer { height: auto; }"

    def __init__(self, view: RunView, peer_id: str, now: Callable[[], float]) -> None:
        super().__init__()
        self._view = view
        self._peer_id = peer_id
        self._time = now

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Lines(id="peer")
        yield Footer()

    def on_mount(self) -> None:
        self.redraw()

    def redraw(self) -> None:
        """Show what is known."""
        peer = self._view.peers.get(self._peer_id)
        text = described(self._view, peer, self._time()) if peer else Text("this peer is not remembered any more")
        for lines in self.query(Lines):  # none while the screen is taken down
            lines.show(text)


def described(view: RunView, peer: PeerView, now: float) -> Text:
    """All that there is to say of a peer."""
    text = Text()
    text.append(f"{peer.name}\n", "bold")
    for word, said in _facts(peer, now):
        text.append(f"{word:<10}", "dim")
        text.append(f"{said}\n")
    text.append(f"\n{_HEAD}\n", "dim")
    for step in sorted(peer.steps, reverse=True)[:_STEPS]:
        text.append(f"{_step_line(peer.steps[step])}\n")
    if not peer.steps:
        text.append("  it has told of no outer step\n", "dim")
    text.append("\n")
    for event in [one for one in view.events if one.peer == peer.peer_id][-_EVENTS:]:
        text.append(time.strftime("%H:%M:%S  ", time.localtime(event.at)), "dim")
        text.append(f"{event.text}\n")
    return text


def _facts(peer: PeerView, now: float) -> list[tuple[str, str]]:
    doing, sent_received = peer.now, [compact(rate) for rate in peer.rates]
    inner = f", inner step {doing.inner_step} of {doing.inner_steps}" if doing and doing.inner_steps else ""
    odd = ", another than most hold at this outer step" if peer.odd else ""
    facts = [
        ("peer", peer.peer_id),
        ("state", f"{peer.state} for {ago(now - peer.since)}, last seen {ago(now - peer.seen_at)} ago"),
        ("at", f"outer step {peer.outer_step}{inner}"),
        ("digest", (peer.beat.digest.hex()[:16] or "none yet") + odd),
        (
            "speed",
            f"{compact(peer.tokens_per_second)} tokens/s, {sent_received[0]} B/s up, {sent_received[1]} B/s down",
        ),
        ("tokens", f"{compact(peer.tokens)} in the outer steps that are known"),
    ]
    facts += [("address", address) for address in peer.beat.addresses]
    if not peer.heard_at:
        facts.append(("", "it tells no news: only its heartbeat is known"))
    return facts


def _step_line(made: RoundMetrics) -> str:
    loss = "-" if made.train_loss is None else f"{made.train_loss:.4f}"[:6]
    figures = [compact(figure) for figure in (made.tokens, made.bytes_sent, made.bytes_received)]
    seconds = {name: f"{getattr(made.seconds, name):.4g}"[:5] for name in (*PHASES, "total")}
    return (
        f"{made.outer_step:>6} {loss:>6} {len(made.group):>3} {made.attempts:>3} {figures[0]:>5} {figures[1]:>5} "
        f"{figures[2]:>5} {seconds['inner']:>5} {seconds['gather']:>6} {seconds['reduce']:>6} {seconds['commit']:>6} "
        f"{seconds['apply']:>5} {seconds['total']:>5}"
    )
