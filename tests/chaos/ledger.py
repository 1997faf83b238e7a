"""What the peers told, and whether it keeps the promises: one lineage, exact means, no step lost, little time lost."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from prime_p2p.allreduce.codec import BLOCK, BlockVector, wire_bytes

AROUND = 3  # outer steps after a fault that may show what it cost
KEPT = 40.0  # seconds that the bytes which peers leave are kept for the check of the mean


@dataclass(frozen=True)
class Commit:
    """One peer's commit, as it told it."""

    at: float
    step: int
    digest: str
    group: frozenset[str]
    attempts: int


@dataclass
class Resources:
    """What one process of a peer held at its commits, in order."""

    rss: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)


class Ledger:
    """The record of a suite. ``names`` gives the name of each peer id; ``exchange`` is where peers leave bytes."""

    def __init__(self, exchange: Path, names: Mapping[str, str]) -> None:
        self.commits: dict[str, list[Commit]] = defaultdict(list)
        self.resources: dict[tuple[str, int], Resources] = defaultdict(Resources)  # by peer and process id
        self.moves: dict[str, list[float]] = defaultdict(list)  # when a peer caught up instead of committing
        self.missed: dict[str, list[tuple[float, str]]] = defaultdict(list)  # when it made no outer step, and why
        self.faulty: list[str] = []  # broken promises about groups and means, in words
        self.forks: list[str] = []  # states from which two groups committed
        self.means_checked = 0
        self._exchange = exchange
        self._names = names
        self._updates: dict[str, str] = {}  # group -> digest of its update
        self._groups: dict[tuple[int, str], str] = {}  # state -> the group that committed from it

    # ---- what peers tell

    def take(self, name: str, pid: int, what: str, details: dict[str, Any]) -> None:
        if what == "committed":
            group = frozenset(self._names[peer] for peer in details["group"])
            self.commits[name].append(
                Commit(details["at"], details["outer_step"], details["digest"], group, details["attempts"])
            )
            resources = self.resources[name, pid]
            resources.rss.append(details["rss"])
            resources.descriptors.append(details["descriptors"])
            resources.tasks.append(details["tasks"])
        elif what == "caught up":
            self.moves[name].append(details["at"])
        elif what == "missed":
            self.missed[name].append((details["at"], details["reason"]))
        elif what == "round":
            self._take_round(details)

    def _take_round(self, details: dict[str, Any]) -> None:
        group, state = details["group"], (details["step"], details["before"])
        if group in self._updates:
            if self._updates[group] != details["update"]:
                self.faulty.append(f"a group of outer step {state[0] + 1} committed two updates")
            return
        self._updates[group] = details["update"]
        if self._groups.setdefault(state, group) != group:
            self.forks.append(f"two groups committed outer step {state[0] + 1}")
        self._check_mean(state, group, details["weights"])
        if len(self._updates) % 16 == 0:
            self._tidy()

    def _check_mean(self, state: tuple[int, str], group: str, weights: Mapping[str, int]) -> None:
        """The update against the weighted mean of what the contributors left, in float64."""
        total = sum(weights.values())
        update = _read(self._exchange / f"update-{group[:16]}")
        mean = np.zeros(len(update), np.float64)
        for peer, weight in weights.items():
            if weight:
                mean += weight / total * _read(self._exchange / f"{state[0]}-{state[1][:16]}-{peer}")
        excess = np.abs(update - mean) - _tolerance(mean)
        if excess.max() > 0:
            self.faulty.append(f"the update of outer step {state[0] + 1} is not the mean of its contributors")
        self.means_checked += 1

    def _tidy(self) -> None:
        oldest = time.time() - KEPT
        for path in self._exchange.iterdir():
            with suppress(FileNotFoundError):  # a peer has just given it its name
                if path.stat().st_mtime < oldest:
                    path.unlink()

    # ---- what follows from it

    def common(self, peers: Collection[str], since: float) -> set[tuple[int, str]]:
        """The states that all of ``peers`` have committed to since then."""
        sets = [{(c.step, c.digest) for c in self.commits[peer] if c.at > since} for peer in peers]
        return set.intersection(*sets) if sets else set()

    def made_together(self, peers: Collection[str], since: float) -> int:
        """How many of those were made by a group of exactly these peers."""
        shared = self.common(peers, since)
        any_peer = next(iter(peers))
        return sum(
            c.group == frozenset(peers) and (c.step, c.digest) in shared for c in self.commits[any_peer] if c.at > since
        )

    def intervals(self, peers: Iterable[str], start: float, end: float) -> list[float]:
        """Seconds between two commits of one peer that lie between ``start`` and ``end``."""
        found = []
        for peer in peers:
            times = [c.at for c in self.commits[peer] if start < c.at < end]
            found += [after - before for before, after in pairwise(times)]
        return found

    def longest_wait(self, peers: Iterable[str], at: float) -> float:
        """The longest time between two commits of one of the peers, of those around ``at``.

        A fault may strike while some have yet to commit the outer step before; so the next few intervals count as well.
        """
        waits = []
        for peer in peers:
            times = [c.at for c in self.commits[peer]]
            first = max(0, sum(time <= at for time in times) - 1)
            around = times[first : first + 1 + AROUND]
            waits += [after - before for before, after in pairwise(around)]
        return max(waits, default=0.0)

    def attempts(self, peers: Iterable[str], at: float) -> int:
        """The most groups that one of the peers began for one of its commits just after ``at``."""
        after = ([c.attempts for c in self.commits[peer] if c.at > at][:AROUND] for peer in peers)
        return max((most for few in after for most in few), default=0)

    def lost_steps(self, peers: Iterable[str], start: float, end: float) -> dict[str, list[int]]:
        """By peer, the outer steps that it did not commit itself, though its companions did."""
        lost: dict[str, list[int]] = {}
        for peer in peers:
            steps = [c.step for c in self.commits[peer] if start < c.at < end]
            missing = [step for before, after in pairwise(steps) for step in range(before + 1, after)]
            if missing:
                lost[peer] = missing
        return lost

    def why_missed(self, peers: Iterable[str], start: float, end: float) -> list[str]:
        """What these peers said of rounds that they came out of without an outer step."""
        return [f"{peer}: {reason}" for peer in peers for at, reason in self.missed[peer] if start < at < end]

    def growth(self, settled: int = 20) -> dict[str, float]:
        """The largest growth of a process after its first ``settled`` commits: a share of memory, else counts."""
        grown = {"memory_share": 0.0, "descriptors": 0.0, "tasks": 0.0, "processes": 0.0}
        for held in self.resources.values():
            if len(held.rss) >= 2 * settled:
                grown["processes"] += 1
                first, last = (statistics.median(held.rss[span]) for span in _ends(settled))
                grown["memory_share"] = max(grown["memory_share"], last / first - 1)
                for name, values in (("descriptors", held.descriptors), ("tasks", held.tasks)):
                    first, last = (statistics.median(values[span]) for span in _ends(settled))
                    grown[name] = max(grown[name], last - first)
        return grown


def _ends(settled: int) -> tuple[slice, slice]:
    return slice(settled, settled + 10), slice(-10, None)


def _read(path: Path) -> Any:
    """A vector from its wire form, as float64."""
    data = path.read_bytes()
    vector = BlockVector.over(len(data) - 4 * -(-len(data) // wire_bytes(BLOCK)), data)
    return vector.values.astype(np.float64) * np.repeat(vector.scales.astype(np.float64), BLOCK)[: vector.n]


def _tolerance(mean: Any) -> Any:
    """How far the codec's own rounding may be from the exact mean: see ``codec.quantise`` and ``codec.accumulate``."""
    absmax = np.maximum.reduceat(np.abs(mean), np.arange(0, len(mean), BLOCK))
    return np.repeat(absmax / 254 * 1.001 + 1e-9, BLOCK)[: len(mean)]
