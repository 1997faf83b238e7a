"""What loggers are told: a point is a few named figures at an outer step, or at an inner step of the run."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal

from prime_p2p.monitor.events import Progress
from prime_p2p.monitor.metrics import RoundMetrics

Axis = Literal["outer_step", "inner_step"]


@dataclass(frozen=True)
class Point:
    """``figures`` by name, at a step; none that is not finite. Seconds, bytes, nats a token, shares from 0 to 1."""

    axis: Axis
    step: int
    figures: dict[str, float]


def of_outer_step(metrics: RoundMetrics) -> Point:
    """What one peer measured in an outer step."""
    seconds = metrics.seconds.total
    figures = {
        "train_loss": metrics.train_loss,
        "validation_loss": metrics.val_loss,
        "group_size": len(metrics.group),
        "attempts": metrics.attempts,
        "tokens": metrics.tokens,
        "group_tokens": sum(metrics.weights),
        "tokens_per_second": metrics.tokens / seconds if seconds > 0 else None,
        "compute_share": metrics.compute_share,
        "bytes_sent": metrics.bytes_sent,
        "bytes_received": metrics.bytes_received,
        "state_bytes": metrics.state_bytes,
        **{f"seconds/{phase}": value for phase, value in asdict(metrics.seconds).items()},
    }
    return _point("outer_step", metrics.outer_step, "outer", figures)


def of_inner_step(progress: Progress, steps_before: int) -> Point:
    """What is known of an inner step; ``steps_before`` inner steps lead to the outer step that it follows."""
    figures = {"loss": progress.loss, "tokens_per_second": progress.tokens_per_second}
    return _point("inner_step", steps_before + progress.inner_step, "inner", figures)


def _point(axis: Axis, step: int, group: str, figures: dict[str, float | None]) -> Point:
    known = {f"{group}/{name}": float(value) for name, value in figures.items() if value is not None}
    return Point(axis, step, {name: value for name, value in known.items() if math.isfinite(value)})
