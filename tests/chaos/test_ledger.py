"""The ledger of the chaos suite finds what is wrong: a suite that could not fail would say nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import Kind, catalogue, schedule
from ledger import Ledger
from report import Outcome, make_report, summary

from prime_p2p.allreduce import codec
from prime_p2p.allreduce.codec import BLOCK, BlockVector

N = 3 * BLOCK + 100
NAMES = {f"id-{name}": name for name in "abc"}
BEFORE = "0" * 64
LEFT: dict[str, Any] = {"processes": []}


def vector(seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(size=N).astype(np.float32)


def write(path: Path, values: np.ndarray[Any, np.dtype[np.float32]]) -> BlockVector:
    blocks = BlockVector.empty(N)
    codec.quantise(values, blocks)
    path.write_bytes(b"".join(bytes(buffer) for buffer in blocks.buffers()))
    return blocks


class Rounds:
    """A ledger, and peers that leave what they bring to rounds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = Ledger(folder, NAMES)

    def round(self, group: str, weights: dict[str, int], error: float = 0.0, step: int = 0) -> dict[str, Any]:
        mean = np.zeros(N, np.float64)
        for seed, (peer, weight) in enumerate(weights.items()):
            blocks = write(self.folder / f"{step}-{BEFORE[:16]}-{peer}", vector(seed))
            values = np.empty(N, np.float32)
            codec.dequantise(blocks, values)
            mean += weight / sum(weights.values()) * values
        mean[7] += error
        update = write(self.folder / f"update-{group[:16]}", mean.astype(np.float32))
        told = {"at": 1.0, "step": step, "before": BEFORE, "group": group, "weights": weights}
        return told | {"update": update.digest().hex()}

    def commit(self, name: str, at: float, step: int, digest: str = "d", group: str = "abc", attempts: int = 1) -> None:
        told = {"at": at, "outer_step": step, "digest": digest, "group": [f"id-{peer}" for peer in group]}
        self.ledger.take(name, 1, "committed", told | {"attempts": attempts, "rss": 1, "descriptors": 1, "tasks": 1})


@pytest.fixture
def rounds(tmp_path: Path) -> Rounds:
    return Rounds(tmp_path)


def test_an_exact_mean_passes(rounds: Rounds) -> None:
    rounds.ledger.take("a", 1, "round", rounds.round("g", {"id-a": 100, "id-b": 300}))
    assert (rounds.ledger.faulty, rounds.ledger.means_checked) == ([], 1)


@pytest.mark.parametrize("weights", [{"id-a": 100, "id-b": 301}, {"id-a": 100}, {"id-a": 100, "id-b": 300, "id-c": 1}])
def test_a_mean_of_other_weights_or_contributors_is_found(rounds: Rounds, weights: dict[str, int]) -> None:
    told = rounds.round("g", {"id-a": 100, "id-b": 300, "id-c": 400})
    rounds.ledger.take("a", 1, "round", told | {"weights": weights})
    assert rounds.ledger.faulty == ["the update of outer step 1 is not the mean of its contributors"]


def test_a_single_wrong_element_is_found(rounds: Rounds) -> None:
    rounds.ledger.take("a", 1, "round", rounds.round("g", {"id-a": 1, "id-b": 1}, error=0.1))
    assert len(rounds.ledger.faulty) == 1


def test_two_updates_of_one_group_are_found(rounds: Rounds) -> None:
    told = rounds.round("g", {"id-a": 1})
    rounds.ledger.take("a", 1, "round", told)
    rounds.ledger.take("b", 1, "round", told | {"update": "another"})
    assert rounds.ledger.faulty == ["a group of outer step 1 committed two updates"]


def test_two_groups_from_one_state_are_a_fork(rounds: Rounds) -> None:
    rounds.ledger.take("a", 1, "round", rounds.round("g", {"id-a": 1}))
    rounds.ledger.take("b", 1, "round", rounds.round("h", {"id-b": 1}))
    assert rounds.ledger.forks == ["two groups committed outer step 1"]


def test_only_what_all_have_committed_is_common(rounds: Rounds) -> None:
    for name in "abc":
        rounds.commit(name, 1.0, 1)
    rounds.commit("a", 2.0, 2)
    rounds.commit("b", 2.0, 2, digest="other")
    assert rounds.ledger.common("abc", since=0.0) == {(1, "d")}
    assert rounds.ledger.made_together("abc", since=0.0) == 1
    assert rounds.ledger.made_together("ab", since=0.0) == 0


def test_a_step_that_a_peer_did_not_commit_itself_is_lost(rounds: Rounds) -> None:
    for at, step in enumerate((1, 2, 5)):
        rounds.commit("a", at, step)
    rounds.ledger.take("a", 1, "missed", {"at": 1.5, "reason": "late"})
    lost = rounds.ledger.lost_steps("a", -1.0, 10.0)
    assert lost == {"a": [3, 4]}
    assert rounds.ledger.why_missed(lost, -1.0, 10.0) == ["a: late"]


def test_the_longest_wait_is_one_around_the_fault(rounds: Rounds) -> None:
    for step, at in enumerate((0.0, 1.0, 2.0, 9.0, 10.0, 11.0, 99.0)):
        rounds.commit("a", at, step, attempts=step)
    assert rounds.ledger.longest_wait("a", at=1.5) == 7.0
    assert rounds.ledger.attempts("a", at=1.5) == 4


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (Outcome("kill", Kind.KILL, "a", 0.0, hang="it did not come back"), "hangs"),
        (Outcome("kill", Kind.KILL, "a", 0.0, lost_steps={"b": [3]}), "lost_outer_steps"),
        (Outcome("kill", Kind.KILL, "a", 0.0, forks=1), "divergences"),
        (Outcome("cut", Kind.CUT, "a", 0.0, forks=1, hang="it did not come back"), "divergences"),
    ],
)
def test_every_broken_promise_fails_the_report(rounds: Rounds, outcome: Outcome, problem: str) -> None:
    report = make_report(rounds.ledger, [outcome], [1.0], [], LEFT)
    assert report[problem] == 1
    assert not report["passed"]


def test_a_fork_that_healed_after_a_cut_passes(rounds: Rounds) -> None:
    report = make_report(rounds.ledger, [Outcome("cut", Kind.CUT, "a", 0.0, forks=1)], [1.0], [], LEFT)
    assert report["passed"]
    assert "PASSED" in summary(report | {"peers": 3, "seconds": 1.0, "seed": 1})


def test_what_is_left_behind_or_ends_unexpectedly_fails_the_report(rounds: Rounds) -> None:
    assert not make_report(rounds.ledger, [], [], ["a ended"], LEFT)["passed"]
    assert not make_report(rounds.ledger, [], [], [], {"processes": ["p2pd"]})["passed"]


def test_a_schedule_has_every_kind_first_and_every_fault_in_the_end() -> None:
    faults, plan = catalogue(), schedule(7)
    first = [next(plan) for _ in faults]
    assert {fault.kind for fault in first[: len(Kind)]} == set(Kind)
    assert sorted(map(str, first)) == sorted(map(str, faults))
