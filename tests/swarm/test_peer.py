"""Peers as processes on loopback: they train together, and whoever comes or goes does not stop the others."""

from __future__ import annotations

import json
import signal
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from processes import PATIENCE, Process, agree, network

from prime_p2p.network.identity import Identity

pytestmark = pytest.mark.timeout(300)


def group_of(size: int) -> Any:
    return lambda step: len(step["group"]) == size


def test_four_peers_go_on_when_one_is_killed_and_when_the_bootstrap_node_is_and_a_fifth_joins(tmp_path: Path) -> None:
    with network(tmp_path) as (bootstrap, _, start):
        peers = [start(f"peer-{number}", **{"round.start_with": 4}) for number in range(4)]
        addresses = [peer.event("ready")["address"] for peer in peers]
        for peer in peers:
            peer.outer_step(group_of(4))
        first_before = peers[0].steps[-1]["outer_step"]

        peers[3].signal(signal.SIGKILL)
        bootstrap.signal(signal.SIGKILL)
        step = peers[0].outer_step(group_of(3))
        assert step["outer_step"] > first_before
        assert step["weights"] == [20 * 2 * 32] * 3

        fifth = start("peer-5", bootstrap=addresses[1])
        fifth.outer_step(group_of(4))
        for peer in peers[:3]:
            peer.outer_step(group_of(4))
        for peer in (*peers[:3], fifth):
            peer.outer_step(group_of(4))
        assert agree(*peers, fifth) >= 8


def test_a_peer_alone_trains_and_lowers_the_loss_and_tells_its_loggers(tmp_path: Path) -> None:
    with network(tmp_path) as (_, _, start):
        logging = {"logging.tensorboard": "board", "logging.wandb": "project"}
        peer = start("peer", **{"run.outer_steps": 6, "eval.every": 1}, **logging)
        peer.event("done")
        losses = [step["val_loss"] for step in peer.steps]
        assert len(losses) == 6
        assert losses[-1] < losses[0] - 0.1
        assert peer.wait() == 0
        (events,) = (peer.directory / "board").iterdir()
        (run,) = peer.directory.glob("wandb/offline-run-*/run-*.wandb")
        assert events.read_bytes().count(b"outer/validation_loss") == 6
        assert run.read_bytes().count(b"outer/validation_loss") >= 6


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_peer_that_is_told_to_stop_saves_and_leaves_and_resumes_where_it_was(
    tmp_path: Path, number: signal.Signals
) -> None:
    with network(tmp_path) as (_, _, start):
        peer = start("peer")
        peer.outer_step(lambda step: step["outer_step"] >= 2)
        children = peer.children()
        began = time.monotonic()
        peer.signal(number)
        assert peer.wait() == 0
        assert time.monotonic() - began < 10
        assert not [child for child in children if child.is_running()]
        lines = (peer.directory / "metrics.jsonl").read_text().splitlines()
        last = json.loads(lines[-1])

        again = start("peer")
        step = again.event("outer_step")
        assert step["outer_step"] == last["outer_step"] + 1


def test_a_peer_whose_daemon_dies_trains_on_with_the_others_under_the_same_address(tmp_path: Path) -> None:
    with network(tmp_path) as (bootstrap, _, start):
        one, two = (start(name, **{"round.start_with": 2}) for name in ("one", "two"))
        address = one.event("ready")["address"]
        for peer in (one, two):
            peer.outer_step(group_of(2))
        for _ in range(2):
            (daemon,) = [child for child in one.children() if child.name() == "p2pd"]
            daemon.kill()
            daemon.wait(PATIENCE)
            for _ in range(3):  # one may have been under way, one may be alone
                one.event("outer_step")
            one.outer_step(group_of(2))
        bootstrap.signal(signal.SIGKILL)
        three = start("three", bootstrap=address)
        for peer in (three, one, two):
            peer.outer_step(group_of(3))
        assert agree(one, two, three) >= 4
        assert one.stderr.count("the libp2p daemon is back") == 2, one.stderr


def test_a_folder_that_belongs_to_another_run_or_to_a_running_peer_is_refused(tmp_path: Path) -> None:
    with network(tmp_path) as (_, _, start):
        peer = start("peer", **{"run.name": "old"})
        peer.event("outer_step")
        second = start("peer", **{"run.name": "old", "logging.tensorboard": "events"})
        assert second.wait() == 2
        assert "in use by another peer" in second.stderr
        assert not (second.directory / "events").exists()  # it has left nothing there
        peer.signal(signal.SIGTERM)
        assert peer.wait() == 0
        other = start("peer", **{"run.name": "new"})
        assert other.wait() == 2
        assert "checkpoint of run 'old'" in other.stderr


def test_nothing_is_left_ten_seconds_after_a_peer_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="pp", dir="/tmp") as temporary, network(tmp_path) as (_, _, start):
        monkeypatch.setenv("TMPDIR", temporary)
        peer = start("peer")
        peer.event("outer_step")
        children = peer.children()
        assert children
        assert list(Path(temporary).glob("prime-p2p-*"))
        peer.signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(children, timeout=10)
        assert not alive
        assert not list(Path(temporary).glob("prime-p2p-*"))


def test_a_leaving_peer_does_not_hold_up_the_others(tmp_path: Path) -> None:
    with network(tmp_path) as (_, _, start):
        stays, leaves = (start(name, **{"round.start_with": 2, "round.patience": 60.0}) for name in ("one", "two"))
        for peer in (stays, leaves):
            peer.outer_step(group_of(2))
        leaves.signal(signal.SIGTERM)
        alone = stays.outer_step(group_of(1))
        assert alone["seconds"]["gather"] < 30
        assert leaves.wait() == 0


def test_a_peer_with_another_recipe_is_refused_with_the_first_difference(tmp_path: Path) -> None:
    with network(tmp_path) as (_, _, start):
        first = start("one")
        first.event("outer_step")
        second = start("two", **{"inner.learning_rate": 0.5})
        assert second.wait() == 2
        assert "inner.learning_rate" in second.stderr
        assert "Traceback" not in second.stderr


def test_status_shows_who_is_here_with_which_digest(tmp_path: Path) -> None:
    with network(tmp_path) as (_, address, start):
        peers = [start(name, **{"round.start_with": 2}) for name in ("one", "two")]
        ids = {peer.event("ready")["peer_id"] for peer in peers}
        for peer in peers:
            peer.outer_step(group_of(2))
        look = Process("status", "--bootstrap", address, "--json")
        assert look.wait() == 0
        rows = json.loads("\n".join(look.rest()))
        assert {row["peer_id"] for row in rows} == ids
        assert all(row["run"] == "tiny" and row["outer_step"] >= 1 and len(row["digest"]) == 64 for row in rows)


def refused(arguments: list[str], code: int, *words: str) -> None:
    """The command ends with this exit code and one line on standard error that has these words."""
    process = Process("peer", *arguments)
    assert process.wait() == code, process.stderr
    lines = [line for line in process.stderr.splitlines() if line.startswith("prime-p2p:")]
    assert len(lines) == 1, process.stderr
    assert "Traceback" not in process.stderr
    for word in words:
        assert word in lines[0]


def test_a_bootstrap_address_where_nobody_answers_is_named_with_its_reason(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        peer_id = Identity.load_or_create(tmp_path / "key").peer_id
        address = f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer_id}"
        began = time.monotonic()
        refused(["--recipe", "peers/tiny.toml", "--bootstrap", address, "--dir", str(tmp_path / "peer")], 3, address)
        assert time.monotonic() - began < PATIENCE


def test_a_taken_port_is_said_before_training_starts(tmp_path: Path) -> None:
    with network(tmp_path) as (_, address, _), socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        options = ["--host", "127.0.0.1", "--port", port, "--dir", str(tmp_path / "peer")]
        refused(["--recipe", "peers/tiny.toml", "--bootstrap", address, *options], 2, port)


def test_an_unreadable_identity_and_an_unwritable_folder_are_said_before_training_starts(tmp_path: Path) -> None:
    with network(tmp_path) as (_, address, _):
        common = ["--recipe", "peers/tiny.toml", "--bootstrap", address]
        (tmp_path / "bad.key").write_text("this is no key")
        identity = str(tmp_path / "bad.key")
        refused([*common, "--identity", identity, "--dir", str(tmp_path / "peer")], 2, identity)
        (tmp_path / "file").write_text("in the way")
        refused([*common, "--dir", str(tmp_path / "file" / "peer")], 2, str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("inner.learning_rat=1", "learning_rate"),
        ("model.layers=0", "model.layers"),
        ("round.inner_steps=no", "inner_steps"),
    ],
)
def test_a_wrong_recipe_is_refused_in_one_line(tmp_path: Path, setting: str, word: str) -> None:
    address = "/ip4/127.0.0.1/tcp/1/p2p/" + Identity.load_or_create(tmp_path / "key").peer_id
    refused(["--recipe", "peers/tiny.toml", "--bootstrap", address, "--set", setting], 2, word)
