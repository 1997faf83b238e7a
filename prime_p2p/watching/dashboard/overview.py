"""The parts of the page of a run, by the id of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import quote

from prime_p2p.monitor import parts
from prime_p2p.monitor.charts import TIME, Axes, Series, clock_time, line_chart
from prime_p2p.public.manifest import SignedManifest
from prime_p2p.watching.dashboard import about, pieces
from prime_p2p.watching.dashboard.certified import NOTHING, Certified
from prime_p2p.watching.dashboard.contributions import contributions
from prime_p2p.watching.dashboard.groups import groups
from prime_p2p.watching.dashboard.history import History
from prime_p2p.watching.dashboard.worldmap import world_map
from prime_p2p.watching.view import PeerView, RunView

MOST_CURVES = 16  # peers whose losses are drawn one by one
MOST_ROUNDS = 200
MOST_ROWS = 100  # of the table of peers
SILENT = 20.0  # seconds without a look at the network, after which the page says so


def overview(
    view: RunView,
    history: History,
    signed: SignedManifest | None,
    at: str,
    now: float,
    certified: Certified = NOTHING,
) -> dict[str, str]:
    """All of them; ``at`` is the address to join by, ``now`` unix seconds."""
    rounds = view.rounds()[-MOST_ROUNDS:]
    return {
        "headline": _headline(view, signed),
        "notices": _notices(view, now),
        "figures": _figures(view),
        "losses": _losses(view, rounds),
        "join": about.joining(view.run, at),
        "speed": _speed(history),
        "crowd": _crowd(history),
        "map": world_map(view),
        "groups": groups(view),
        "phases": parts.phases(rounds),
        "traffic": _traffic(view, rounds),
        "peers": _peers(view),
        "contributions": contributions(view, certified),
        "events": pieces.events(view.events),
        "about": about.described(view, signed),
    }


def _headline(view: RunView, signed: SignedManifest | None) -> str:
    there = len(view.present)
    return (
        f"<h1>{escape(view.name)}</h1><p>outer step {view.outer_step:,} · {there:,} peer{'' if there == 1 else 's'} ·"
        f" {about.phase(view, signed)}</p>"
    )


def _notices(view: RunView, now: float) -> str:
    lines = []
    if now - view.looked_at > SILENT:
        lines.append(
            f"The network has not answered since {clock_time(view.looked_at)} UTC: this is what was seen then."
        )
    odd = sum(peer.odd for peer in view.present)
    if odd:
        lines.append(f"{odd} of {len(view.present)} peers hold another state than most at their outer step.")
    return f'<ul class="notices">{"".join(f"<li>{line}</li>" for line in lines)}</ul>' if lines else ""


def _figures(view: RunView) -> str:
    validation, share = view.validation(), view.compute_share
    gone = sum(peer.gone for peer in view.peers.values())
    step, loss = validation[-1] if validation else (0, None)
    return parts.tiles(
        [
            ("Validation loss", parts.loss(loss), f"of the anchor at outer step {step:,}" if step else "", ""),
            ("Training loss", parts.loss(view.loss), "of the last inner steps", ""),
            ("Speed", pieces.whole(view.tokens_per_second), "tokens a second", ""),
            ("Tokens", pieces.tokens(view.tokens), "in outer steps of the run", ""),
            ("Compute share", "–" if share is None else f"{share:.1%}", "of the time in inner steps", ""),
            ("Peers", f"{len(view.present):,}", f"and {gone:,} that have gone", ""),
        ]
    )


def _losses(view: RunView, rounds: Sequence[Mapping[str, Any]]) -> str:
    told = [peer for peer in _by_name(view.peers.values()) if peer.steps][:MOST_CURVES]
    labels = pieces.labels(view)
    train = [
        (labels[peer.peer_id], [(step, peer.steps[step].train_loss) for step in sorted(peer.steps)]) for peer in told
    ]
    return parts.losses(train, view.validation()[-MOST_ROUNDS:], rounds)


def _speed(history: History) -> str:
    speed = Series("all peers", "c0", parts.points((one.at, one.tokens_per_second) for one in history.samples))
    axes = Axes("Speed", "tokens a second", across=TIME)
    return parts.card("Speed", "Tokens a second of all peers together.", line_chart(axes, [speed]))


def _crowd(history: History) -> str:
    peers = Series("peers", "c2", parts.points((one.at, one.peers) for one in history.samples))
    axes = Axes("Peers", "peers", whole_y=True, across=TIME)
    return parts.card("Peers over time", "Those that were there, since this page began.", line_chart(axes, [peers]))


def _traffic(view: RunView, rounds: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for step in (one["outer_step"] for one in rounds):
        made = [peer.steps[step] for peer in view.peers.values() if step in peer.steps]
        sent, received = sum(one.bytes_sent for one in made), sum(one.bytes_received for one in made)
        rows.append((step, sent / len(made), received / len(made)))
    return pieces.traffic("Bytes", "Sent and received for an outer step, the mean over its peers.", rows)


def _peers(view: RunView) -> str:
    peers = _by_name(view.peers.values())
    heads = ["Peer", "State", "Outer step", "Inner step", "Loss", "Tokens/s", "Up", "Down", "Group", "Compute", "Holds"]
    labels = pieces.labels(view)
    rows = [_row(peer, labels[peer.peer_id]) for peer in peers[:MOST_ROWS]]
    more = f'<p class="note">and {len(peers) - MOST_ROWS:,} peers more</p>' if len(peers) > MOST_ROWS else ""
    return parts.card("Peers", "", parts.table(heads, rows, numbers=range(2, 10)) + more)


def _row(peer: PeerView, label: str) -> list[str]:
    doing, last = peer.now, peer.last
    sent, received = peer.rates
    inner = f"{doing.inner_step:,} of {doing.inner_steps:,}" if doing and doing.inner_steps and not peer.gone else "–"
    return [
        f'<a href="peer/{quote(peer.peer_id, safe="")}">{escape(label)}</a>',
        pieces.state(peer),
        f"{peer.outer_step:,}",
        inner,
        parts.loss(peer.loss),
        pieces.whole(peer.tokens_per_second),
        pieces.rate(sent),
        pieces.rate(received),
        f"{len(last.group)}" if last else "–",
        f"{last.compute_share:.0%}" if last else "–",
        pieces.digest(peer),
    ]


def _by_name(peers: Iterable[PeerView]) -> list[PeerView]:
    """Those that are there before those that have gone."""
    return sorted(peers, key=lambda peer: (peer.gone, peer.name.casefold(), peer.peer_id))
