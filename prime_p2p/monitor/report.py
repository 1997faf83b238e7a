"""The outcome of a swarm: ``report.json`` for programs, a few lines for the terminal, ``report.html`` for people."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import fmean
from typing import Any

from prime_p2p.monitor.metrics import PHASES, RoundMetrics, finite

JSON_NAME, HTML_NAME, MODEL_NAME = "report.json", "report.html", "model"
_VERSIONED = ("prime_p2p", "torch", "transformers", "numpy", "hivemind")


@dataclass(frozen=True)
class RunFacts:
    """What a report says of the run as a whole, beside what its peers measured."""

    name: str
    seed: int
    recipe: str  # where it was read from
    directory: str  # where everything is written to
    outer_steps: int  # that were asked for
    threads_per_peer: int
    started_at: str  # ISO 8601, UTC
    wall_seconds: float
    val_start: float | None = None
    val_end: float | None = None
    events: tuple[str, ...] = ()  # what went wrong, a line each
    failure: str | None = None
    exit_code: int = 0


@dataclass(frozen=True)
class PeerResult:
    """How one peer ended and what it measured, in the order it was written."""

    name: str
    peer_id: str
    finished: bool
    ending: str
    metrics: tuple[RoundMetrics, ...]

    def by_step(self) -> dict[int, RoundMetrics]:
        """The last record of each outer step: after a fork, the one on the lineage the peer stayed on."""
        return {metrics.outer_step: metrics for metrics in sorted(self.metrics, key=lambda one: one.outer_step)}


def build_report(facts: RunFacts, peers: Sequence[PeerResult]) -> dict[str, Any]:
    """The report as plain JSON values.

    ``compute_share``, ``seconds`` and ``bytes_sent_per_peer`` are of the peers that finished, or of all when none
    did: a ratio of sums over them, and means a peer. ``digests_agree`` is whether all peers that finished hold the same
    digest at each outer step that more than one of them recorded; None when none finished.
    """
    finished = [peer for peer in peers if peer.finished]
    counted = finished or list(peers)
    measured = [metrics for peer in counted for metrics in peer.metrics]
    total = sum(metrics.seconds.total for metrics in measured)
    rounds = rounds_of(peers)
    return {
        "name": facts.name,
        "peers": len(peers),
        "peers_finished": len(finished),
        "outer_steps": rounds[-1]["outer_step"] if rounds else 0,
        "outer_steps_asked": facts.outer_steps,
        "val_loss": {"start": _short(facts.val_start), "end": _short(facts.val_end)},
        "digests_agree": _agree(finished) if finished else None,
        "compute_share": round(sum(metrics.seconds.inner for metrics in measured) / total, 4) if total > 0 else 0.0,
        "bytes_sent_per_peer": round(sum(metrics.bytes_sent for metrics in measured) / max(1, len(counted))),
        "seconds": _phase_means([peer.metrics for peer in counted]),
        "wall_seconds": round(facts.wall_seconds, 2),
        "started_at": facts.started_at,
        "seed": facts.seed,
        "recipe": facts.recipe,
        "directory": facts.directory,
        "threads_per_peer": facts.threads_per_peer,
        "versions": versions(),
        "failure": facts.failure,
        "exit_code": facts.exit_code,
        "events": list(facts.events),
        "peer_details": [_details(peer) for peer in peers],
        "rounds": rounds,
        "curves": loss_curves(peers, facts.val_start, facts.val_end),
    }


def write_json(report: Mapping[str, Any], directory: Path) -> Path:
    """Write ``report.json`` into an existing folder; returns its path."""
    path = directory / JSON_NAME
    path.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return path


def summary(report: Mapping[str, Any]) -> str:
    """The few lines that a person wants at the end."""
    loss, digest = report["val_loss"], report["rounds"][-1]["digest"] if report["rounds"] else ""
    lines = [
        f"{report['peers_finished']} of {report['peers']} peers made"
        f" {report['outer_steps']} of {report['outer_steps_asked']} outer steps in {report['wall_seconds']:.0f} s"
    ]
    if loss["start"] is not None and loss["end"] is not None:
        lines.append(f"validation loss   {loss['start']:.4f} -> {loss['end']:.4f}")
    if digest:
        agree = {True: "the same on all that finished", False: "NOT THE SAME ON ALL", None: "no peer finished"}
        lines.append(f"digests           {agree[report['digests_agree']]} ({digest[:16]})")
    if report["rounds"]:
        lines.append(f"peers per round   {_group_sizes(report['rounds'])}")
    lines.append(f"compute share     {report['compute_share']:.1%} of the time in inner steps")
    lines.append(f"sent per peer     {report['bytes_sent_per_peer'] / 1e6:.1f} MB")
    lines += [f"note              {event}" for event in report["events"]]
    directory = Path(report["directory"])
    if loss["end"] is not None:
        lines.append(f"model             {directory / MODEL_NAME}")
    lines.append(f"report            {directory / HTML_NAME}")
    return "\n".join(lines)


def _group_sizes(rounds: Sequence[Mapping[str, Any]]) -> str:
    """How many peers the rounds averaged over, as in "4 in 28 of 30, 3 in 2 of 30"."""
    counts = Counter(int(row["group_size"]) for row in rounds)
    return ", ".join(f"{size} in {count} of {len(rounds)}" for size, count in sorted(counts.items(), reverse=True))


def versions() -> dict[str, str]:
    """What ran: the versions of Python, the machine and the packages that decide results."""
    found = {"python": platform.python_version(), "platform": platform.platform(terse=True)}
    for package in _VERSIONED:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # a checkout that was never installed
            continue
    return found


def _agree(finished: Sequence[PeerResult]) -> bool:
    digests: dict[int, set[str]] = {}
    for peer in finished:
        for step, metrics in peer.by_step().items():
            digests.setdefault(step, set()).add(metrics.digest)
    return all(len(held) == 1 for held in digests.values())


def rounds_of(peers: Sequence[PeerResult]) -> list[dict[str, Any]]:
    """One entry an outer step: of the digest that most peers hold there (ties: of the first peer)."""
    by_peer = [peer.by_step() for peer in peers]
    rounds = []
    for step in sorted({step for records in by_peer for step in records}):
        made = [records[step] for records in by_peer if step in records]
        digest, holders = Counter(metrics.digest for metrics in made).most_common(1)[0]
        same = [metrics for metrics in made if metrics.digest == digest]
        losses = [metrics.train_loss for metrics in same if metrics.train_loss is not None]
        rounds.append(
            {
                "outer_step": step,
                "group_size": max(len(metrics.group) for metrics in same),
                "digest": digest,
                "recorded_by": len(made),
                "held_by": holders,
                "attempts": max(metrics.attempts for metrics in same),
                "tokens": sum(metrics.tokens for metrics in same),
                "train_loss": _short(fmean(losses)) if losses else None,
                "seconds": _phase_means([[metrics] for metrics in same]),
            }
        )
    return rounds


def _phase_means(records: Sequence[Sequence[RoundMetrics]]) -> dict[str, float]:
    """Mean over peers of each phase's seconds, summed over a peer's records."""
    names = (*PHASES, "total")
    sums = [[sum(getattr(metrics.seconds, name) for metrics in own) for name in names] for own in records]
    return {name: round(sum(own[place] for own in sums) / max(1, len(sums)), 4) for place, name in enumerate(names)}


def _details(peer: PeerResult) -> dict[str, Any]:
    last = max(peer.metrics, key=lambda metrics: metrics.outer_step, default=None)
    seconds = _phase_means([peer.metrics])
    return {
        "name": peer.name,
        "peer_id": peer.peer_id,
        "finished": peer.finished,
        "ending": peer.ending,
        "outer_step": last.outer_step if last else 0,
        "digest": last.digest if last else "",
        "tokens": sum(metrics.tokens for metrics in peer.metrics),
        "bytes_sent": sum(metrics.bytes_sent for metrics in peer.metrics),
        "bytes_received": sum(metrics.bytes_received for metrics in peer.metrics),
        "compute_share": round(seconds["inner"] / seconds["total"], 4) if seconds["total"] else 0.0,
        "seconds": seconds,
    }


def loss_curves(peers: Sequence[PeerResult], start: float | None = None, end: float | None = None) -> dict[str, Any]:
    """Points [outer step, loss]: of training for each peer, of validation for the run."""
    train: dict[str, list[list[float | None]]] = {}
    validation: dict[int, float] = {}
    last = 0
    for peer in peers:
        records = peer.by_step()
        last = max([last, *records])
        train[peer.name] = [[step, _short(m.train_loss)] for step, m in records.items() if m.train_loss is not None]
        validation |= {step: m.val_loss for step, m in records.items() if m.val_loss is not None}
    if start is not None:
        validation[0] = start
    if end is not None:
        validation[last] = end
    return {"train": train, "validation": [[step, _short(validation[step])] for step in sorted(validation)]}


def _short(value: float | None) -> float | None:
    value = finite(value)
    return None if value is None else round(value, 6)
