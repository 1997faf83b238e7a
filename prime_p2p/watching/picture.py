"""A whole view of a run as plain JSON values, for programs and pages. Times are unix seconds of the swarm's clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from prime_p2p.watching.view import Event, PeerView, RunView

MOST_ROUNDS = 200  # of a picture, the newest


def picture(view: RunView, now: float) -> dict[str, Any]:
    """All that is known of a run at ``now``, with what has been."""
    rounds = view.rounds()[-MOST_ROUNDS:]
    return present(view, now) | {
        "rounds": rounds,
        "losses": {
            "train": [[one["outer_step"], one["train_loss"]] for one in rounds if one["train_loss"] is not None],
            "validation": [list(point) for point in view.validation()[-MOST_ROUNDS:]],
        },
        "events": [event_values(event) for event in view.events],
    }


def present(view: RunView, now: float) -> dict[str, Any]:
    """What is known of a run as it is at ``now``; ``round`` is the newest outer step, None where none is known."""
    return {
        "run": view.run,
        "name": view.name,
        "at": now,
        "outer_step": view.outer_step,
        "tokens": view.tokens,
        "tokens_per_second": view.tokens_per_second,
        "compute_share": view.compute_share,
        "loss": view.loss,
        "phases": dict(Counter(peer.state for peer in view.present)),
        "peers": [peer_values(peer, now) for peer in view.peers.values()],
        "round": next(reversed(view.rounds()), None),
    }


def peer_values(peer: PeerView, now: float) -> dict[str, Any]:
    """What is known of one peer. Rates are bytes a second over its last outer step; ``tells`` is whether it has told
    news, without which only its heartbeat is known; ``seen`` is how many seconds ago it last said something."""
    sent, received = peer.rates
    last, doing = peer.last, peer.now
    return {
        "peer_id": peer.peer_id,
        "name": peer.name,
        "state": peer.state,
        "gone": peer.gone,
        "since": peer.since,
        "seen": round(max(0.0, now - peer.seen_at), 1),
        "tells": peer.heard_at > 0,
        "outer_step": peer.outer_step,
        "inner_step": doing.inner_step if doing else None,
        "inner_steps": doing.inner_steps if doing else None,
        "loss": peer.loss,
        "tokens_per_second": peer.tokens_per_second,
        "tokens": peer.tokens,
        "sent_per_second": sent,
        "received_per_second": received,
        "group_size": doing.group_size if doing else len(last.group) if last else 0,
        "digest": peer.beat.digest.hex(),
        "odd": peer.odd,
        "compute_share": last.compute_share if last else None,
        "attempts": last.attempts if last else None,
        "seconds": asdict(last.seconds) if last else None,
        "pace": peer.beat.pace,
        "addresses": list(peer.beat.addresses),
        "location": peer.beat.location._asdict() if peer.beat.location else None,
    }


def event_values(event: Event) -> dict[str, Any]:
    """One event."""
    return asdict(event)
