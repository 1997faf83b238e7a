"""Peers and whole runs that are stopped or killed, and go on from what is on their disks."""

from __future__ import annotations

import json
import resource
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import Peer, agree, network

from prime_p2p import DiLoCo, Swarm
from prime_p2p.diloco import DiLoCoOptions, OuterStep
from prime_p2p.errors import BadInput
from prime_p2p.monitor.metrics import read_metrics
from prime_p2p.state.checkpoints import Checkpoints
from prime_p2p.swarm.runner import RoundResult

pytestmark = pytest.mark.timeout(300)

Start = Callable[..., Peer]


def history(folder: Path) -> list[tuple[int, str]]:
    """Outer steps and digests in the order they were made."""
    return [(line.outer_step, line.digest) for line in read_metrics(folder / "metrics.jsonl")]


def newest_numbers(folder: Path) -> dict[str, Any]:
    newest = max((folder / "checkpoints").iterdir())
    numbers: dict[str, Any] = json.loads((newest / "checkpoint.json").read_text())["numbers"]
    return numbers


def stop(peer: Peer) -> None:
    peer.signal(signal.SIGTERM)
    assert peer.wait() == 0, peer.stderr


def stop_among_inner_steps(peer: Peer) -> None:
    """Wait for an outer step, then stop it when it has made some inner steps of the next one."""
    peer.event("outer_step")
    while not 5 < peer.event("progress")["inner_step"] < 200:
        pass
    stop(peer)


def test_a_lone_peer_that_is_stopped_among_inner_steps_ends_with_the_bytes_of_one_that_was_not(tmp_path: Path) -> None:
    settings = {
        "run.outer_steps": 6,
        "round.inner_steps": 250,
        "round.inner_steps_schedule": "[[2, 230], [4, 260]]",
        "inner.schedule": "cosine",
        "inner.total_steps": 2000,
        "outer.schedule": "linear",
        "outer.total_steps": 6,
    }
    with network(tmp_path) as (_, _, start):
        straight = start("straight", **settings)
        straight.event("done")
        assert straight.wait() == 0
        (tmp_path / "stopped").mkdir()
        shutil.copy(tmp_path / "straight" / "identity.key", tmp_path / "stopped")  # the data is that of the identity
        for _ in range(3):
            stop_among_inner_steps(start("stopped", **settings))
            assert 5 < newest_numbers(tmp_path / "stopped")["inner_step"] < 250
        last = start("stopped", **settings)
        last.event("done")
        assert last.wait() == 0
    assert len(history(tmp_path / "straight")) == 6
    assert history(tmp_path / "stopped") == history(tmp_path / "straight")


def test_a_lone_peer_that_is_killed_goes_on_after_its_last_outer_step_not_after_its_last_checkpoint(
    tmp_path: Path,
) -> None:
    settings = {"checkpoint.every": 4, "eval.every": 0}
    with network(tmp_path) as (_, _, start):
        for at_least in (3, 7):  # before the first checkpoint, and after it
            peer = start("peer", **settings)
            peer.outer_step(lambda step, at_least=at_least: step["outer_step"] >= at_least and step["outer_step"] % 4)
            peer.signal(signal.SIGKILL)
            peer.wait()
        start("peer", **settings).event("outer_step")
    steps = [step for step, _ in history(tmp_path / "peer")]
    # One outer step may be in the journal that the killed peer had no time to write a line about.
    assert all(after - before in (1, 2) for before, after in pairwise(steps)), steps


def test_a_run_that_was_stopped_as_a_whole_goes_on_from_the_newest_state_that_anybody_kept(tmp_path: Path) -> None:
    settings = {"round.start_with": 3, "round.patience": 60.0}
    names = ("one", "two", "three")
    with network(tmp_path) as (_, _, start):
        peers = [start(name, **settings) for name in names]
        for peer in peers:
            peer.outer_step(lambda step: len(step["group"]) == 3)
        for leaving, staying in ((2, 1), (1, 0)):
            stop(peers[leaving])
            for _ in range(3):
                peers[staying].event("outer_step")
        stop(peers[0])
        kept = [newest_numbers(tmp_path / name)["step"] for name in names]
        assert kept[0] > kept[1] > kept[2], kept
        before = dict(history(tmp_path / "one"))

        again = [start(name, **settings) for name in reversed(names)]
        first = [peer.outer_step(lambda step: len(step["group"]) == 3) for peer in again]
        for peer in again:
            assert agree(*again) >= 2
            assert min(peer.digests()) > kept[0], (kept, peer.digests())
        assert len({(step["outer_step"], step["digest"]) for step in first}) == 1
        assert not before.keys() & again[0].digests().keys()


def test_a_peer_that_comes_back_follows_from_journals_or_a_snapshot_however_far_the_others_are(tmp_path: Path) -> None:
    settings = {"round.inner_steps": 4, "eval.every": 0, "round.start_with": 2}
    with network(tmp_path) as (_, _, start):
        stays, returns = (start(name, **settings) for name in ("stays", "returns"))
        both = [stays, returns]
        for ahead in (3, 40):  # within the length of a journal, and beyond it
            for peer in both:
                peer.outer_step(lambda step: len(step["group"]) == 2)
            stop(returns)
            left_at = newest_numbers(tmp_path / "returns")["step"]
            stays.outer_step(lambda step, least=left_at + ahead: step["outer_step"] >= least)
            returns = start("returns", **settings | {"round.start_with": 1})
            both = [stays, returns]
            assert returns.event("outer_step")["outer_step"] > left_at + ahead
        for peer in both:
            peer.outer_step(lambda step: len(step["group"]) == 2)
    compared = agree(stays, returns)
    stays_history, returns_history = dict(history(tmp_path / "stays")), dict(history(tmp_path / "returns"))
    assert compared
    assert all(stays_history.get(step, digest) == digest for step, digest in returns_history.items())


def test_a_peer_whose_disk_is_full_trains_on_says_so_and_saves_again_when_there_is_room(tmp_path: Path) -> None:
    with network(tmp_path) as (_, _, start):
        peer = start("peer", **{"checkpoint.every": 1, "checkpoint.keep": 1})
        peer.outer_step(lambda step: step["outer_step"] >= 2)
        full = 2000  # bytes of a file; what is beyond cannot be written
        _, hard = resource.prlimit(peer.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(peer.process.pid, resource.RLIMIT_FSIZE, (full, hard))
        said = peer.event("log")["text"]
        assert "cannot be written" in said or said.startswith("no checkpoint at outer step")
        trained = peer.event("outer_step")["outer_step"]
        peer.outer_step(lambda step: step["outer_step"] >= trained + 3)
        kept = newest_numbers(tmp_path / "peer")["step"]
        assert kept <= trained
        resource.prlimit(peer.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        peer.outer_step(lambda step: step["outer_step"] >= trained + 6)
        stop(peer)
        assert newest_numbers(tmp_path / "peer")["step"] >= trained + 6
        steps = [step for step, _ in history(tmp_path / "peer")]
        assert steps == list(range(1, steps[-1] + 1))  # no line of the metrics was lost


# ---- somebody's own training loop

INNER_STEPS = 3


class Loop:
    """A small model that is trained in this process, with random numbers of torch's own generator."""

    def __init__(self, swarm: Swarm, folder: Path) -> None:
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 8)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.model = model
        self.checkpoints = Checkpoints(folder / "checkpoints")
        options = DiLoCoOptions(folder / "journal", resume=self.checkpoints.load_newest())
        self.diloco = DiLoCo(model, self.optimizer, swarm, INNER_STEPS, options=options)

    def inner_step(self) -> OuterStep | None:
        self.optimizer.zero_grad()
        self.model(torch.randn(4, 8)).square().mean().backward()
        self.optimizer.step()
        return self.diloco.step(tokens=4)

    def save(self) -> None:
        self.checkpoints.save(self.diloco.checkpoint(0))

    @property
    def state(self) -> tuple[int, bytes]:
        return self.diloco.state.step, self.diloco.state.digest


def test_a_folder_that_was_copied_goes_on_under_another_identity_from_the_same_digest(tmp_path: Path) -> None:
    with Swarm("copied") as swarm:
        loop = Loop(swarm, tmp_path / "here")
        for _ in range(4 * INNER_STEPS + 1):
            loop.inner_step()
        loop.save()
        saved, first_id = loop.state, swarm.peer_id
        for _ in range(2 * INNER_STEPS):
            loop.inner_step()
        end = loop.state
    shutil.copytree(tmp_path / "here" / "checkpoints", tmp_path / "there" / "checkpoints")
    with Swarm("copied") as swarm:
        assert swarm.peer_id != first_id
        loop = Loop(swarm, tmp_path / "there")
        assert loop.state == saved
        for _ in range(2 * INNER_STEPS):
            loop.inner_step()
        assert loop.state == end


def test_a_round_that_is_left_for_a_signal_is_made_after_the_restart_with_the_same_inner_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Swarm("left") as swarm:
        loop = Loop(swarm, tmp_path / "straight")
        for _ in range(2 * INNER_STEPS):
            loop.inner_step()
        end = loop.state
    with Swarm("left") as swarm:
        loop = Loop(swarm, tmp_path / "left")
        for _ in range(2 * INNER_STEPS - 1):
            loop.inner_step()
        swarm.hold_no_more()
        monkeypatch.setattr(swarm, "make_round", lambda *_: RoundResult(reason="this peer is leaving"))
        outcome = loop.inner_step()
        assert outcome is not None
        assert not outcome.committed
        loop.save()
    with Swarm("left") as swarm:
        loop = Loop(swarm, tmp_path / "left")
        assert loop.diloco.inner_step == INNER_STEPS
        loop.diloco.outer_step()
        assert loop.state == end


def test_a_checkpoint_that_names_no_codec_is_one_of_int8(tmp_path: Path) -> None:
    with Swarm("codecs") as swarm:
        loop = Loop(swarm, tmp_path)
        for _ in range(2 * INNER_STEPS):
            loop.inner_step()
        checkpoint = loop.diloco.checkpoint(0)
        nameless = {"round": {"inner_steps": INNER_STEPS}}
        loop.checkpoints.save(replace(checkpoint, description=checkpoint.description | nameless))
        end = loop.state
    with Swarm("codecs") as swarm:
        loop = Loop(swarm, tmp_path)
        assert loop.state == end
        options = DiLoCoOptions(resume=loop.checkpoints.load_newest(), codec="int4")
        with pytest.raises(BadInput, match=r'of this run with another recipe: round.codec: "int4" here, "int8" there'):
            DiLoCo(loop.model, loop.optimizer, swarm, INNER_STEPS, options=options)
        with pytest.raises(BadInput, match=r"^the codec must be int8 or int4, not 'int2'$"):
            DiLoCo(loop.model, loop.optimizer, swarm, INNER_STEPS, options=DiLoCoOptions(codec="int2"))


def test_a_checkpoint_of_another_recipe_is_refused_with_the_first_difference(tmp_path: Path) -> None:
    with Swarm("recipes") as swarm:
        loop = Loop(swarm, tmp_path)
        loop.save()
        options = DiLoCoOptions(resume=loop.checkpoints.load_newest())
        with pytest.raises(BadInput, match=r"of this run with another recipe: round.inner_steps: 4 here, 3 there"):
            DiLoCo(loop.model, loop.optimizer, swarm, INNER_STEPS + 1, options=options)
