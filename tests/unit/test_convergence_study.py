"""The study: what is run next, what is kept when it is killed, and the page made of it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from scripts.convergence import plan
from scripts.convergence.arms import STEPS, Setting
from scripts.convergence.findings import verdicts
from scripts.convergence.page import write
from scripts.convergence.plan import (
    DATA_PARALLEL,
    ELASTIC,
    FP32,
    INT4,
    INT8,
    LOWEST,
    PERIODS,
    Stage,
    best_rate,
    missing,
    rates,
)
from scripts.convergence.results import Outcome, Results
from scripts.convergence.runner import run_missing

ARMS = (DATA_PARALLEL, INT8, INT4)


def outcome(loss: float, sent: int = 1000) -> Outcome:
    return Outcome(loss, ((STEPS // 2, loss + 1), (STEPS, loss)), sent, 2.0)


def fake(setting: Setting) -> Outcome:
    """Trains in no time; every arm has a best rate of its own, some far from where the search begins."""
    best = 0.008 * 2.0 ** (ARMS.index(setting.arm) * 2 - 2)
    return outcome(2 + abs(math.log2(setting.rate / best)) + 0.01 * setting.seed)


@pytest.fixture
def short_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = *(Stage(arm, 1) for arm in ARMS), *(Stage(arm, 3) for arm in ARMS)
    monkeypatch.setattr(plan, "PLAN", stages)


@pytest.mark.usefixtures("short_plan")
def test_every_arm_is_tuned_until_the_best_rate_has_a_worse_one_on_both_sides_and_has_its_seeds(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl")
    run_missing(results, fake)
    for arm in ARMS:
        tried, best = rates(arm, results.found), best_rate(arm, results.found)
        assert best is not None
        assert min(tried.values()) == tried[best] == 2.01
        assert min(tried) < best < max(tried)
        assert all(Setting(arm, best, seed) in results.found for seed in (1, 2, 3))


@pytest.mark.usefixtures("short_plan")
def test_an_arm_that_diverges_at_every_rate_is_given_up_at_the_lowest(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl")
    run_missing(results, lambda setting: outcome(math.inf if setting.arm == INT4 else 2.0))
    assert LOWEST <= min(rates(INT4, results.found)) < 2 * LOWEST
    again = Results(tmp_path / "results.jsonl")
    assert again.found == results.found


@pytest.mark.usefixtures("short_plan")
def test_a_study_that_is_killed_goes_on_with_the_run_it_was_killed_in(tmp_path: Path) -> None:
    whole = Results(tmp_path / "whole.jsonl")
    run_missing(whole, fake)
    path = tmp_path / "results.jsonl"
    ran: list[Setting] = []

    def killed(setting: Setting) -> Outcome:
        if len(ran) == 6:
            raise KeyboardInterrupt
        ran.append(setting)
        return fake(setting)

    with pytest.raises(KeyboardInterrupt):
        run_missing(Results(path), killed)
    assert list(Results(path).found) == ran
    with path.open("ab") as file:
        file.write(b'{"setting":{"arm":{"me')  # a line that was being written
    run_missing(Results(path), fake)
    assert path.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def some_results(tmp_path: Path) -> Results:
    """Four arms on three seeds, one of them without a worse rate above."""
    results = Results(tmp_path / "convergence" / "results.jsonl")
    for arm, loss, sent in (
        (DATA_PARALLEL, 1.5, 100_000_000),
        (FP32, 1.6, 2_000_000),
        (INT8, 1.601, 500_000),
        (PERIODS[0], 1.51, 2_500_000),
    ):
        for rate, worse in ((0.004, 0.05), (0.008, 0.0), (0.016, 0.1)):
            results.add(Setting(arm, rate, 1), outcome(loss + worse, sent))
        for seed in (2, 3):
            results.add(Setting(arm, 0.008, seed), outcome(loss + 0.01 * (seed - 1), sent))
    for rate in (0.004, 0.008):
        results.add(Setting(ELASTIC, rate, 1), outcome(1.7 - rate))
    return results


def test_the_page_says_what_is_reached_what_is_not_and_what_is_not_measured(tmp_path: Path) -> None:
    found = some_results(tmp_path).found
    write(found, tmp_path)
    page = (tmp_path / "convergence.md").read_text()
    assert "| data-parallel | 0.008 | 1.5100 ± 0.0100 (3 seeds) |  | 100.0 MB | 1 |" in page
    assert "| DiLoCo int8, H = 50 | 0.008 | 1.6110 ± 0.0100 (3 seeds) | +6.7% | 0.5 MB | 200 |" in page
    assert "| DiLoCo int4, H = 50 |  | not measured |  |  |  |" in page
    assert "- DiLoCo int8, H = 50, one leaves, one joins: its rate is being tuned" in page
    assert "- DiLoCo int4, H = 50: nothing" in page
    assert "| data-parallel | 1.5500 | **1.5000** | 1.6000 |" in page
    assert "$" not in page
    for name in ("curves", "bytes", "rates"):
        assert f"convergence/{name}.svg" in page
        assert (tmp_path / "convergence" / f"{name}.svg").read_text().startswith("<svg")
    quantised, int4, cheap, elastic, _ = verdicts(found)
    assert (quantised.reached, int4.reached, cheap.reached, elastic.reached) == (True, None, True, None)
    assert cheap.because.startswith("DiLoCo int8, H = 10: 40 times less than float32 gradients, +0.7%")


def test_a_difference_as_large_as_the_spread_and_a_loss_too_high_are_not_reached(tmp_path: Path) -> None:
    results = some_results(tmp_path)
    for setting, one in list(results.found.items()):
        if setting.arm in (INT8, PERIODS[0]):
            results.add(setting, outcome(one.loss + 0.02, one.sent))
    quantised, _, cheap, *_ = verdicts(results.found)
    assert (quantised.reached, cheap.reached) == (False, False)
    assert "DiLoCo int8, H = 10" in cheap.because


def test_a_page_of_no_results_says_so_and_refers_to_no_plot(tmp_path: Path) -> None:
    write({}, tmp_path)
    page = (tmp_path / "convergence.md").read_text()
    assert "not measured" in page
    assert ".svg" not in page
    assert next(missing({})).arm == DATA_PARALLEL
