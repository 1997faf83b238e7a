"""The record of a peer's outer steps: one JSON line each, appended to ``metrics.jsonl`` and flushed at once."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from prime_p2p.errors import BadInput

FILE_NAME = "metrics.jsonl"


@dataclass(frozen=True)
class PhaseSeconds:
    """Wall seconds of one outer step by phase. ``total`` runs from commit to commit, so it holds the waits too."""

    inner: float = 0.0
    gather: float = 0.0
    reduce: float = 0.0
    commit: float = 0.0
    apply: float = 0.0
    total: float = 0.0


PHASES = tuple(one.name for one in fields(PhaseSeconds) if one.name != "total")


_STATE = ("replayed", "snapshots", "state_bytes", "given_snapshots", "given_bytes")  # fetched, and given


@dataclass(frozen=True)
class RoundMetrics:
    """What one peer measured in one outer step.

    Attributes:
        outer_step: Outer steps committed so far, this one included (so the first line says 1).
        digest: The state after the commit, in hex.
        group: Peer ids in the order of the group.
        weights: Tokens that each peer of the group contributed, in the same order.
        attempts: Tries of the round until it committed.
        train_loss: Mean over the inner steps of this outer step; None when it was not a finite number.
        tokens: Tokens that this peer contributed to this outer step.
        bytes_sent: Payload and framing that this peer sent for this outer step.
        bytes_received: The same, received.
        seconds: Where the time went.
        val_loss: Validation loss of the new anchor; None when it was not evaluated.
        replayed: Updates that this peer had missed and replayed since its outer step before (or since it joined).
        snapshots: Snapshots that it fetched, in the same time.
        state_bytes: Bytes that it received for both.
        given_snapshots: Times that others took pieces of a snapshot from it, in the same time.
        given_bytes: Bytes of updates and snapshots that it gave to others, in the same time.
        dropped: What this process dropped of what others sent, in the same time, by kind (see ``network.dropped``).
    """

    outer_step: int
    digest: str
    group: tuple[str, ...]
    weights: tuple[int, ...]
    attempts: int
    train_loss: float | None
    tokens: int
    bytes_sent: int
    bytes_received: int
    seconds: PhaseSeconds
    val_loss: float | None = None
    replayed: int = 0
    snapshots: int = 0
    state_bytes: int = 0
    given_snapshots: int = 0
    given_bytes: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def compute_share(self) -> float:
        """Share of the wall time spent in inner steps, 0 to 1."""
        return min(1.0, self.seconds.inner / self.seconds.total) if self.seconds.total > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """The fields as plain JSON values; those from ``val_loss`` on only where there is something to tell."""
        record = asdict(self)
        record["group"], record["weights"] = list(self.group), list(self.weights)
        record["train_loss"] = finite(self.train_loss)
        record["val_loss"] = finite(self.val_loss)
        if record["val_loss"] is None:
            del record["val_loss"]
        for name in (*_STATE, "dropped"):
            if not record[name]:
                del record[name]
        record["compute_share"] = round(self.compute_share, 6)
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> RoundMetrics:
        """The inverse of ``to_json``.

        Raises:
            KeyError, TypeError, ValueError: The record is not one of ours.
        """
        train_loss, val_loss = record["train_loss"], record.get("val_loss")
        return cls(
            outer_step=int(record["outer_step"]),
            digest=str(record["digest"]),
            group=tuple(str(peer) for peer in record["group"]),
            weights=tuple(int(weight) for weight in record["weights"]),
            attempts=int(record["attempts"]),
            train_loss=None if train_loss is None else float(train_loss),
            tokens=int(record["tokens"]),
            bytes_sent=int(record["bytes_sent"]),
            bytes_received=int(record["bytes_received"]),
            seconds=PhaseSeconds(**{name: float(value) for name, value in record["seconds"].items()}),
            val_loss=None if val_loss is None else float(val_loss),
            **{name: int(record.get(name, 0)) for name in _STATE},
            dropped={str(kind): int(count) for kind, count in dict(record.get("dropped", {})).items()},
        )


class MetricsLog:
    """Appends outer steps to a peer's metrics file; owns the open file.

    A line that a crash cut short is removed on opening, so that the next one starts on a line of its own.
    """

    def __init__(self, path: Path) -> None:
        """Open ``path``, made with its folder where it is missing.

        Raises:
            BadInput: The file cannot be opened for writing.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_cut_line(path)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise BadInput(f"cannot write the metrics to {path}: {error.strerror}; choose another folder") from error

    def append(self, metrics: RoundMetrics) -> None:
        """Write one line and flush it to the operating system."""
        self._file.write(json.dumps(metrics.to_json(), allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def finite(value: float | None) -> float | None:
    """``value``, or None where JSON has no number for it."""
    return value if value is not None and math.isfinite(value) else None


def read_metrics(path: Path) -> list[RoundMetrics]:
    """The outer steps of a metrics file in the order they were written; none when there is no file.

    A last line without its newline was cut by a crash and is ignored.

    Raises:
        BadInput: A whole line is not a metrics record.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [_parse(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


def _parse(line: bytes, where: str) -> RoundMetrics:
    try:
        return RoundMetrics.from_json(json.loads(line))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"{where} is not a metrics record ({error!r}); remove the line") from error


def remove_cut_line(path: Path) -> None:
    """Shorten a file of lines to whole ones: the last was cut where a crash came. Raises OSError."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)
