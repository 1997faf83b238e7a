"""Runs what the plan needs and the results lack."""

from __future__ import annotations

from collections.abc import Callable

from scripts.convergence.arms import Setting
from scripts.convergence.plan import missing
from scripts.convergence.results import Outcome, Results


def run_missing(results: Results, train: Callable[[Setting], Outcome]) -> None:
    """One run after the other until the plan is done, each kept as soon as it has ended."""
    while (setting := next(missing(results.found), None)) is not None:
        run_one(results, setting, train)


def run_one(results: Results, setting: Setting, train: Callable[[Setting], Outcome]) -> None:
    """One run, kept and told."""
    outcome = train(setting)
    results.add(setting, outcome)
    print(f"{outcome.loss:.4f}  {outcome.seconds:.0f} s  {setting} {outcome.note}", flush=True)
