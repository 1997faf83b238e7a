"""What the page of a run and that of a peer both have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from html import escape

from prime_p2p.monitor import parts
from prime_p2p.monitor.charts import Axes, Series, bar_chart, clock_time, legend
from prime_p2p.monitor.text import size
from prime_p2p.swarm.location import Location
from prime_p2p.watching.figures import compact
from prime_p2p.watching.view import Event, PeerView, RunView

SHOWN_EVENTS = 40
_BAD = ("lost", "fork", "dropped")
_GOOD = ("joined", "healed")


def labels(view: RunView) -> dict[str, str]:
    """What to call each peer, by its id: those who give themselves one name are told apart by the ends of their ids."""
    named = Counter(peer.name.casefold() for peer in view.peers.values())
    return {
        peer.peer_id: peer.name if named[peer.name.casefold()] == 1 else f"{peer.name} …{peer.peer_id[-6:]}"
        for peer in view.peers.values()
    }


def state(peer: PeerView) -> str:
    """What a peer does, as HTML; of one that has gone also since when."""
    word = escape(peer.state)
    if peer.gone:
        css = "bad" if peer.state in _BAD else "quiet"
        return f'<span class="{css}">{word}</span> <small>since {clock_time(peer.since)}</small>'
    return word


def digest(peer: PeerView) -> str:
    """The state that a peer holds, as HTML."""
    shown = parts.code(peer.beat.digest.hex(), 6)
    return (
        f'<span class="bad" title="another state than most hold at this outer step">◆</span> {shown}'
        if peer.odd
        else shown
    )


def place(location: Location) -> str:
    """Where that is, as people write it."""
    latitude, longitude = location
    return f"{abs(latitude)}° {'S' if latitude < 0 else 'N'}, {abs(longitude)}° {'W' if longitude < 0 else 'E'}"


def rate(bytes_per_second: float) -> str:
    return f"{size(bytes_per_second)}/s" if bytes_per_second else "–"


def whole(value: float) -> str:
    """A number without digits behind the point, or a dash for none."""
    return f"{value:,.0f}" if value else "–"


def tokens(count: int) -> str:
    """So many tokens, in a few characters."""
    return compact(count) if count >= 10_000_000 else whole(count)


def events(found: Iterable[Event]) -> str:
    """The newest events, the last one first."""
    newest = list(found)[: -SHOWN_EVENTS - 1 : -1]
    rows = "".join(
        f'<li><time>{clock_time(one.at)}</time><i class="kind {_tone(one.kind)}">{escape(one.kind)}</i>'
        f"<span>{escape(one.text)}</span></li>"
        for one in newest
    )
    content = f'<ol class="events">{rows}</ol>' if rows else '<p class="nothing">Nothing has happened yet.</p>'
    return parts.card("Events", "Times are UTC.", content)


def _tone(kind: str) -> str:
    return "bad" if kind in _BAD else "good" if kind in _GOOD else ""


def traffic(title: str, note: str, rows: Iterable[tuple[int, float, float]]) -> str:
    """Bytes sent and received at each outer step."""
    counted = list(rows)
    series = [
        Series("sent", "c0", parts.points((step, sent / 1e6) for step, sent, _ in counted)),
        Series("received", "c5", parts.points((step, received / 1e6) for step, _, received in counted)),
    ]
    return parts.card(title, note, legend(series) + bar_chart(Axes(title, "MB", unit=" MB"), series))
