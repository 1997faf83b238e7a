"""What came of the suite: a line for each fault, the figures, and whether every promise was kept."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from faults import Kind
from ledger import Ledger


@dataclass
class Outcome:
    """What one fault did. ``wait`` is the longest time between two commits of a survivor around it, ``attempts`` how
    many groups that took, ``recovered`` how long it took until all were in one group again; in seconds. ``lost_steps``
    are those that each survivor did not commit, and ``missed`` what it said of that.
    """

    fault: str
    kind: Kind
    victim: str
    at: float
    wait: float = 0.0
    attempts: int = 0
    recovered: float = 0.0
    lost_steps: dict[str, list[int]] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    forks: int = 0
    hang: str = ""

    def __str__(self) -> str:
        text = f"{self.fault} ({self.victim}): survivors waited {self.wait:.1f} s, {self.attempts} attempts; "
        text += f"all together {self.recovered:.1f} s later"
        text += f"; outer steps lost: {self.lost_steps}, {self.missed}" if self.lost_steps else ""
        text += f"; {self.forks} forks" if self.forks else ""
        return text + (f"; HANG: {self.hang}" if self.hang else "")


def make_report(
    ledger: Ledger, outcomes: Sequence[Outcome], clean: Sequence[float], unexpected: list[str], left: dict[str, Any]
) -> dict[str, Any]:
    """The figures as plain values. A fork is a divergence where nobody was cut off, or where it did not heal."""
    clean_round = statistics.median(clean) if clean else 0.0
    kills = [outcome.wait for outcome in outcomes if outcome.kind is Kind.KILL and not outcome.hang]
    hangs = [outcome for outcome in outcomes if outcome.hang]
    diverged = [outcome for outcome in outcomes if outcome.forks and (outcome.hang or not outcome.kind.isolates)]
    report = {
        "faults": len(outcomes),
        "by_kind": {kind.value: sum(outcome.kind is kind for outcome in outcomes) for kind in Kind},
        "divergences": len(diverged) + len(ledger.faulty),
        "hangs": len(hangs),
        "lost_outer_steps": sum(len(steps) for outcome in outcomes for steps in outcome.lost_steps.values()),
        "forks_healed": sum(outcome.forks for outcome in outcomes) - sum(outcome.forks for outcome in diverged),
        "means_checked": ledger.means_checked,
        "median_clean_round_s": round(clean_round, 2),
        "median_round_with_a_kill_s": round(statistics.median(kills), 2) if kills else None,
        "longest_wait_s": round(max((outcome.wait for outcome in outcomes), default=0.0), 2),
        "wait_by_kind_s": _waits(outcomes),
        "growth": ledger.growth(),
        "left_behind": left,
        "unexpected": unexpected,
        "wrong": ledger.faulty,
        "outcomes": [asdict(outcome) | {"kind": outcome.kind.value} for outcome in outcomes],
    }
    bad = ("divergences", "hangs", "lost_outer_steps", "unexpected", "wrong")
    return report | {"passed": not any(report[name] for name in bad) and not any(left.values())}


def _waits(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    found = {}
    for kind in Kind:
        waits = [outcome.wait for outcome in outcomes if outcome.kind is kind and not outcome.hang]
        if waits:
            found[kind.value] = {"median": round(statistics.median(waits), 2), "longest": round(max(waits), 2)}
    return found


def summary(report: dict[str, Any]) -> str:
    """The figures in a few lines."""
    waits = ", ".join(
        f"{kind} {wait['median']:.1f}/{wait['longest']:.1f}" for kind, wait in report["wait_by_kind_s"].items()
    )
    return "\n".join(
        [
            f"{report['faults']} faults over {report['peers']} peers in {report['seconds']} s, seed {report['seed']}",
            f"divergences {report['divergences']}, hangs {report['hangs']}, "
            f"lost outer steps {report['lost_outer_steps']}, forks healed {report['forks_healed']}, "
            f"means checked {report['means_checked']}",
            f"a clean round {report['median_clean_round_s']} s, with a kill {report['median_round_with_a_kill_s']} s",
            f"longest wait of a survivor, median/longest: {waits}",
            f"growth {report['growth']}",
            f"left behind {report['left_behind']}, unexpected {report['unexpected']}, wrong {report['wrong']}",
            "PASSED" if report["passed"] else "FAILED",
        ]
    )
