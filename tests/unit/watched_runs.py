"""A run as a watcher sees it, made up: a view that is told the heartbeats and news of so many peers."""

from __future__ import annotations

import math

from prime_p2p.bulletin.messages import Now
from prime_p2p.monitor.events import State
from prime_p2p.monitor.metrics import PhaseSeconds, RoundMetrics
from prime_p2p.swarm.membership import Heartbeat
from prime_p2p.watching.view import RunView

START = 1_700_000_000.0
STATES = (State.TRAINING, State.TRAINING, State.TRAINING, State.GATHERING, State.REDUCING)


def peer_id(number: int) -> str:
    return f"12D3KooWTest{number:08}"


def digest(step: int) -> bytes:
    return step.to_bytes(32, "little")


def beat(number: int, step: int, at: float, **changes: object) -> Heartbeat:
    fields: dict[str, object] = {
        "step": step,
        "digest": digest(step),
        "tokens": 40_000 * step,
        "state": "training",
        "sent_at": at,
        "name": f"peer-{number}",
        "addresses": [f"/ip4/192.0.2.{number % 250}/tcp/31330"],
    }
    return Heartbeat.model_validate(fields | changes)


def made(step: int, group: tuple[str, ...], **changes: object) -> RoundMetrics:
    fields: dict[str, object] = {
        "outer_step": step,
        "digest": digest(step).hex(),
        "group": group,
        "weights": (10_000,) * len(group),
        "attempts": 1,
        "train_loss": 1.4 + 4.2 * math.exp(-step / 20),
        "tokens": 10_000,
        "bytes_sent": 4_100_000,
        "bytes_received": 4_200_000,
        "seconds": PhaseSeconds(inner=18.2, gather=0.4, reduce=0.9, commit=0.1, apply=0.2, total=20.0),
    }
    return RoundMetrics(**(fields | changes))  # type: ignore[arg-type]


def now(number: int, step: int, **changes: object) -> Now:
    fields: dict[str, object] = {
        "outer_step": step,
        "inner_step": 10 * (number % 10),
        "inner_steps": 100,
        "loss": 1.5 + number / 100,
        "tokens_per_second": 1000.0 + number,
        "group_size": 8,
        "state": STATES[number % len(STATES)],
    }
    return Now.model_validate(fields | changes)


def run_of(peers: int, steps: int = 40, run: str = "demo") -> RunView:
    """Peers that were there from the first outer step on, and have told all of them."""
    view = RunView(run)
    group = tuple(peer_id(number) for number in range(min(8, peers)))
    view.looked({peer_id(number): beat(number, steps, START) for number in range(peers)}, START)
    for number in range(peers):
        told = [made(step, group) for step in range(1, steps + 1)]
        view.heard(peer_id(number), [*told, now(number, steps)], START)
    return view
