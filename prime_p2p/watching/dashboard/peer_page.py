"""The parts of the page of one peer, by the id of each."""

from __future__ import annotations

from dataclasses import asdict
from html import escape

from prime_p2p.monitor import parts
from prime_p2p.monitor.charts import Axes, Series, legend, line_chart
from prime_p2p.watching.dashboard import pieces
from prime_p2p.watching.view import PeerView, RunView

SHOWN_STEPS = 50  # in the table


def peer_page(view: RunView, peer: PeerView) -> dict[str, str]:
    """All of them."""
    steps = [peer.steps[step] for step in sorted(peer.steps)]
    rounds = [{"outer_step": one.outer_step, "seconds": asdict(one.seconds)} for one in steps]
    return {
        "headline": _headline(view, peer),
        "notices": _notices(peer),
        "figures": _figures(peer),
        "losses": _losses(peer),
        "phases": parts.phases(rounds, "Where the time of its outer steps went."),
        "traffic": pieces.traffic(
            "Bytes",
            "That it sent and received for each outer step.",
            ((one.outer_step, one.bytes_sent, one.bytes_received) for one in steps),
        ),
        "steps": _steps(view, peer),
        "events": pieces.events(event for event in view.events if event.peer == peer.peer_id),
        "places": _places(peer),
    }


def _headline(view: RunView, peer: PeerView) -> str:
    location = peer.beat.location
    where = f" · near {pieces.place(location)}" if location else ""
    id_ = f"<code>{escape(peer.peer_id)}</code>"
    words = f"outer step {peer.outer_step:,} · a peer of run {escape(view.name)}{where} · {id_}"
    return f"<h1>{escape(peer.name)}</h1><p>{words}</p>"


def _notices(peer: PeerView) -> str:
    if not peer.odd:
        return ""
    return '<ul class="notices"><li>It holds another state than most peers at its outer step.</li></ul>'


def _figures(peer: PeerView) -> str:
    doing, last = peer.now, peer.last
    inner = f"inner step {doing.inner_step:,} of {doing.inner_steps:,}" if doing and doing.inner_steps else ""
    sent, received = peer.rates
    share = "–" if last is None else f"{last.compute_share:.1%}"
    return parts.tiles(
        [
            ("State", peer.state, "" if peer.gone else inner, "bad" if peer.gone else ""),
            ("Loss", parts.loss(peer.loss), "of its last inner step", ""),
            ("Speed", pieces.whole(peer.tokens_per_second), "tokens a second", ""),
            ("Up", pieces.rate(sent), f"down {pieces.rate(received)}", ""),
            ("Compute share", share, "of its last outer step", ""),
            ("Contributed", pieces.tokens(peer.tokens), "tokens, as far as seen here", ""),
        ]
    )


def _losses(peer: PeerView) -> str:
    steps = sorted(peer.steps)
    train = Series("training", "c0", parts.points((step, peer.steps[step].train_loss) for step in steps))
    anchor = Series("validation", "ink", parts.points((step, peer.steps[step].val_loss) for step in steps), marked=True)
    drawn = line_chart(Axes("Loss", "nats per token", from_zero=False), [train, anchor])
    note = "Its training loss, a mean over the inner steps, and the validation losses that it measured."
    return parts.card("Loss", note, legend([train, anchor]) + drawn)


def _steps(view: RunView, peer: PeerView) -> str:
    rows, labels = [], pieces.labels(view)
    for step in sorted(peer.steps, reverse=True)[:SHOWN_STEPS]:
        made = peer.steps[step]
        others = [labels.get(other, f"…{other[-8:]}") for other in made.group if other != peer.peer_id]
        rows.append(
            [
                f"{step:,}",
                escape(", ".join(others)) or "nobody",
                f"{made.attempts:,}",
                parts.loss(made.train_loss),
                f"{made.tokens:,}",
                f"{made.seconds.total:.1f} s",
                parts.code(made.digest, 10),
            ]
        )
    heads = ["Outer step", "Made with", "Attempts", "Loss", "Tokens", "Time", "Digest"]
    note = f"Its last {SHOWN_STEPS}, the newest first." if len(peer.steps) > SHOWN_STEPS else "The newest first."
    return parts.card("Outer steps", note, parts.table(heads, rows, numbers=range(2, 6)))


def _places(peer: PeerView) -> str:
    places = "".join(f"<li><code>{escape(address)}</code></li>" for address in peer.beat.addresses)
    content = f'<ul class="places">{places}</ul>' if places else '<p class="nothing">It has told none.</p>'
    return parts.card("Addresses", "Where it says that it can be reached.", content)
