"""The figures of peers in columns of text: which there are, how each is written, and in which order it puts peers.

What peers say of themselves is in here as it is: it has been checked to be printable where it was read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, set_cell_size

from prime_p2p.watching.view import PeerView

_WIDEST_NAME = 30


@dataclass(frozen=True)
class Column:
    """One column. ``text`` writes the figure of a peer at a time, ``order`` is what peers are sorted by; ``rank`` says
    which columns go first where there is no room, the largest before all others."""

    title: str
    width: int
    rank: int
    text: Callable[[PeerView, float], str]
    order: Callable[[PeerView, float], Any]
    right: bool = True
    largest_first: bool = True

    def cell(self, text: str) -> str:
        """A text in so many columns of the terminal as the column is wide."""
        short = text if cell_len(text) <= self.width else set_cell_size(text, self.width - 1) + "…"
        return " " * (self.width - cell_len(short)) + short if self.right else set_cell_size(short, self.width)


def compact(value: float) -> str:
    """A number to three digits in at most five characters: 0, 865, 12.3k or 1.03M."""
    for unit in ("", "k", "M", "G", "T"):
        if value < 999.5:
            digits = 0 if not unit or value >= 99.95 else 1 if value >= 9.995 else 2
            return f"{value:.{digits}f}{unit}"
        value /= 1000
    return "a lot"


def ago(seconds: float) -> str:
    """Seconds in at most three characters: 7s, 12m, 3h or 40d."""
    for unit, length in (("s", 60), ("m", 60), ("h", 24)):
        if seconds < length:
            return f"{int(max(0.0, seconds))}{unit}"
        seconds /= length
    return f"{min(99, int(seconds))}d"


def _natural(name: str) -> str:
    """What names are sorted by: peer-2 goes before peer-10."""
    return re.sub("[0-9]+", lambda digits: digits[0].zfill(20), name.casefold())


def _inner(peer: PeerView, now: float) -> str:
    return f"{peer.now.inner_step}/{peer.now.inner_steps}" if peer.now and peer.now.inner_steps else "-"


def _done(peer: PeerView, now: float) -> float:
    return peer.now.inner_step / peer.now.inner_steps if peer.now and peer.now.inner_steps else 0.0


def _loss(peer: PeerView, now: float) -> str:
    if peer.loss is None:
        return "-"
    return f"{peer.loss:.4f}"[:6] if 0 <= peer.loss < 1000 else compact(abs(peer.loss))


def _group(peer: PeerView) -> int:
    return peer.now.group_size if peer.now else 0


def _digest(peer: PeerView, now: float) -> str:
    digest = peer.beat.digest.hex()
    return f"!{digest[:5]}" if peer.odd else digest[:6] or "-"


def _rate(value: float) -> str:
    return compact(value) if value else "-"


COLUMNS = (
    Column(
        "peer", 9, 0, lambda peer, now: peer.name, lambda peer, now: _natural(peer.name), right=False,
        largest_first=False,
    ),
    Column("step", 6, 1, lambda peer, now: str(peer.outer_step), lambda peer, now: peer.outer_step),
    Column("inner", 7, 9, _inner, _done),
    Column(
        "loss", 6, 3, _loss,
        lambda peer, now: -1e31 if peer.loss is None else peer.loss,
    ),
    Column("tok/s", 6, 4, lambda peer, now: _rate(peer.tokens_per_second), lambda peer, now: peer.tokens_per_second),
    Column("up B/s", 6, 6, lambda peer, now: _rate(peer.rates[0]), lambda peer, now: peer.rates[0]),
    Column("dn B/s", 6, 7, lambda peer, now: _rate(peer.rates[1]), lambda peer, now: peer.rates[1]),
    Column("grp", 3, 10, lambda peer, now: str(_group(peer) or "-"), lambda peer, now: _group(peer)),
    Column("phase", 9, 2, lambda peer, now: peer.state, lambda peer, now: peer.state, right=False, largest_first=False),
    Column("digest", 6, 8, _digest, lambda peer, now: (not peer.odd, peer.beat.digest), right=False,
           largest_first=False),
    Column("seen", 4, 5, lambda peer, now: ago(now - peer.seen_at), lambda peer, now: now - peer.seen_at,
           largest_first=False),
)  # fmt: skip


def columns_for(width: int) -> list[Column]:
    """Those that fit so many columns of a terminal, with a blank before each; what is left is for the names."""
    shown = sorted(COLUMNS, key=lambda column: column.rank)
    while len(shown) > 1 and sum(column.width + 1 for column in shown) > width:
        shown.pop()
    spare = max(0, width - sum(column.width + 1 for column in shown))
    widths = {"peer": min(_WIDEST_NAME, COLUMNS[0].width + spare)}
    return [
        Column(**vars(column) | {"width": widths.get(column.title, column.width)})
        for column in COLUMNS
        if column in shown
    ]


def in_order(peers: Iterable[PeerView], column: Column, reverse: bool, now: float) -> list[PeerView]:
    """Peers sorted by a column, as it sorts them or the other way round; those that are gone come last."""
    by_name = sorted(peers, key=lambda peer: (_natural(peer.name), peer.peer_id))
    by_figure = sorted(by_name, key=lambda peer: column.order(peer, now), reverse=column.largest_first is not reverse)
    return sorted(by_figure, key=lambda peer: peer.gone)


def matches(peer: PeerView, wanted: str) -> bool:
    """Whether a text is part of the peer's name, id or state, in whichever case."""
    return any(wanted.casefold() in text.casefold() for text in (peer.name, peer.peer_id, peer.state))
