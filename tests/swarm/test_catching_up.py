"""Peers as processes that join late, were away for some outer steps, or may not start a run."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from processes import RECIPE, SMALL, Peer, agree, network

from prime_p2p import Swarm
from prime_p2p.monitor.metrics import MetricsLog
from prime_p2p.monitor.reporter import open_reporter
from prime_p2p.news import News
from prime_p2p.recipe import Recipe
from prime_p2p.swarm.gathering import RoundPolicy
from prime_p2p.swarm.swarm import SwarmOptions
from prime_p2p.terms import Course, Terms

pytestmark = pytest.mark.timeout(300)


def group_of(size: int) -> Any:
    return lambda step: len(step["group"]) == size


def metrics(peer: Peer) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (peer.directory / "metrics.jsonl").read_text().splitlines()]


def test_a_late_joiner_fetches_a_snapshot_and_its_metrics_say_so(tmp_path: Path) -> None:
    with network(tmp_path) as (_, _, start):
        first = start("first")
        first.outer_step(lambda step: step["outer_step"] >= 3)
        late = start("late")
        joined = late.outer_step(group_of(2))
        assert agree(first, late) >= 0
        line = metrics(late)[0]
        assert line["outer_step"] >= 4
        assert line["snapshots"] == 1
        assert line["state_bytes"] > 1000
        assert joined["outer_step"] >= line["outer_step"]
        before, gave = metrics(first)[0], [step for step in first.steps if "given_snapshots" in step]
        while not gave:
            gave.append(first.outer_step(lambda step: "given_snapshots" in step))
        assert sum(step["given_bytes"] for step in gave) > 1000
        assert not {"snapshots", "given_snapshots"} & before.keys()


def test_a_peer_that_was_away_for_some_outer_steps_replays_them_and_fetches_no_snapshot(tmp_path: Path) -> None:
    with network(tmp_path) as (_, _, start):
        # An outer step takes a second or more: no more of them than the journal holds are missed.
        settings = {"round.start_with": 2, "round.inner_steps": 400}
        stays, leaves = (start(name, **settings) for name in ("stays", "leaves"))
        for peer in (stays, leaves):
            peer.outer_step(group_of(2))
        leaves.signal(signal.SIGSTOP)
        try:
            away = stays.outer_step(group_of(1))["outer_step"]
            stays.outer_step(lambda step: step["outer_step"] >= away + 3)
        finally:
            leaves.signal(signal.SIGCONT)
        leaves.outer_step(lambda step: step["outer_step"] > away + 3)
        lines = metrics(leaves)[1:]  # the first one tells of joining, too
        assert sum(line.get("replayed", 0) for line in lines) >= 3
        assert sum(line.get("snapshots", 0) for line in lines) == 0
        agree(stays, leaves)


def test_a_peer_that_may_not_start_the_run_waits_for_one_that_holds_it(tmp_path: Path) -> None:
    with network(tmp_path) as (_, _, start):
        waits = start("waits", **{"run.start": "nobody"})
        waits.event("ready")
        starts = start("starts", options=["--init"], **{"run.start": "nobody"})
        starts.outer_step(lambda step: step["outer_step"] >= 1)
        waits.outer_step(group_of(2))
        assert metrics(waits)[0]["outer_step"] >= 1
        agree(waits, starts)


def test_a_peer_that_waits_for_somebody_who_holds_the_run_says_so_and_can_be_stopped(tmp_path: Path) -> None:
    with network(tmp_path) as (_, _, start):
        waits = start("waits", **{"run.start": "nobody"})
        while "may not start it" not in waits.stderr:
            assert waits.process.poll() is None
            try:
                waits.line(timeout=1.0)
            except AssertionError:
                continue
        waits.signal(signal.SIGTERM)
        assert waits.wait() == 0
        assert not (waits.directory / "checkpoints").exists()


def test_a_late_joiner_has_the_learning_rate_and_the_inner_steps_of_all_others(tmp_path: Path) -> None:
    import torch

    from prime_p2p.peer import Peer as TrainingPeer
    from prime_p2p.schedules import inner_rate
    from prime_p2p.training.trainer import Trainer

    schedule, made = "[[1, 3], [3, 5]]", 4
    settings = SMALL | {"round.inner_steps": 2, "round.inner_steps_schedule": schedule, "eval.every": 0}
    settings |= {"inner.warmup_steps": 100, "outer.schedule": "cosine", "outer.total_steps": 9}
    recipe = Recipe.load(RECIPE, [f"{key}={value}" for key, value in settings.items()])
    options = SwarmOptions(policy=RoundPolicy(patience=10.0, grace=2.0, stall_timeout=5.0))

    def trainer_of(recipe: Recipe, folder: Path) -> Trainer:
        return Trainer(recipe, torch.device("cpu"), folder)

    def peer_of(name: str, swarm: Swarm) -> TrainingPeer:
        folder = tmp_path / name
        peer = TrainingPeer(Course(Terms(recipe)), folder, trainer_of, swarm, News(reporter, logs[name]))
        reading.enter_context(peer.reader)
        return peer

    with (
        ExitStack() as reading,
        open_reporter(True) as reporter,
        MetricsLog(tmp_path / "one" / "metrics.jsonl") as one_log,
        MetricsLog(tmp_path / "two" / "metrics.jsonl") as two_log,
        Swarm(recipe.run.name, (), options) as swarm,
    ):
        logs = {"one": one_log, "two": two_log}
        first = peer_of("one", swarm)
        while first.diloco.state.step < made:
            first.inner_step()
            first.diloco.step(tokens=1)
        with Swarm(recipe.run.name, swarm.addresses[:1], options) as other:
            late = peer_of("two", other)
            assert late.global_step == first.global_step == 2 + 3 + 3 + 5
            assert late.diloco.inner_steps == first.diloco.inner_steps == 5
            for peer in (first, late):
                peer.inner_step()
                rates = {group["lr"] for group in peer.trainer.optimizer.param_groups}
                assert rates == {inner_rate(recipe.inner, 13)}
            assert inner_rate(recipe.inner, 13) != inner_rate(recipe.inner, 0)
