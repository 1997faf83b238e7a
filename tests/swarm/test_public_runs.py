"""Public runs with the command line: published, joined by one address, changed by their author."""

from __future__ import annotations

import json
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from processes import COMMAND, PATIENCE, RECIPE, Trainer, agree, network, overrides

from prime_p2p.network.identity import Identity

pytestmark = pytest.mark.timeout(300)
SAVED_EVERY = 50  # outer steps: seconds, so that no save is left out because the one before it is not over


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=PATIENCE)


class Author:
    """Publishes the run ``pub`` with a key of its own."""

    def __init__(self, folder: Path) -> None:
        self._key = folder / "author.key"

    def publish(self, bootstrap: str, *arguments: str, sub: str = "publish") -> subprocess.CompletedProcess[str]:
        return command(sub, *arguments, "--name", "pub", "--key", str(self._key), "--bootstrap", bootstrap)

    def published(self, bootstrap: str, *arguments: str) -> dict[str, Any]:
        done = self.publish(bootstrap, *arguments, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def group_of(size: int) -> Any:
    return lambda step: len(step["group"]) == size


def test_a_run_is_joined_by_its_address_alone_and_changes_on_all_its_peers_at_once(tmp_path: Path) -> None:
    """And goes on without the bootstrap node and the author, whose manifest the peers keep."""
    author = Author(tmp_path)
    with network(tmp_path) as (bootstrap, at, _), ExitStack() as started:

        def join(name: str, address: str) -> Trainer:
            place = ["--dir", str(tmp_path / name), "--host", "127.0.0.1", "--threads", "1"]
            peer = Trainer(tmp_path / name, "join", address, "--yes", *place)
            started.callback(peer.end)
            return peer

        recipe = (str(RECIPE), *overrides(), "--set", f"checkpoint.every={SAVED_EVERY}")
        run = author.published(at, *recipe)
        assert (run["sequence"], run["name"]) == (1, "pub")
        peers = [join(name, run["address"]) for name in ("one", "two")]
        inside, _ = (peer.event("ready")["address"] for peer in peers)
        for peer in peers:
            peer.outer_step(group_of(2))
        bootstrap.signal(signal.SIGKILL)

        third_id = Identity.load_or_create(tmp_path / "three" / "identity.key").peer_id
        inside_address = inside + run["address"][run["address"].index("/run/") :]
        third = join("three", inside_address)
        for peer in (*peers, third):
            peer.outer_step(group_of(3))
        refused = author.publish(inside, f"…{third_id[-8:]}", sub="ban")
        assert refused.returncode == 0, refused.stderr
        assert third.wait() == 2
        assert "admits this peer no more" in third.stderr

        wish = ["--set", "outer.momentum=0.25", "--pause", "--notice", "30"]
        changed = author.published(inside, *recipe, *wish)
        (change,) = changed["changes"]
        assert (change["values"], change["phase"]) == ({"outer.momentum": 0.25}, "pause")
        for peer in peers:
            peer.outer_step(lambda step: step["outer_step"] >= change["at"])
            assert peer.steps[-1]["outer_step"] == change["at"]
        listed = json.loads(command("runs", "--bootstrap", inside, "--json").stdout)
        assert [(row["run"], row["outer_step"], row["phase"]) for row in listed] == [("pub", change["at"], "pause")]
        seen = json.loads(command("show", inside_address, "--json").stdout)
        assert (seen["sequence"], seen["phase"], seen["outer_step"]) == (3, "pause", change["at"])
        assert (seen["admission"]["banned"], seen["changes"]) == ([third_id], [])
        assert seen["recipe"]["outer"]["momentum"] == 0.25

        author.published(inside, "--continue")
        for peer in peers:  # who goes on later than the other may fetch a snapshot: its journal begins there
            peer.outer_step(lambda step: len(step["group"]) == 2 and step["outer_step"] % SAVED_EVERY == 0)
            peer.outer_step(group_of(2))
        assert agree(*peers, third) >= 4
        for peer in peers:
            peer.signal(signal.SIGTERM)
        assert [peer.wait() for peer in peers] == [0, 0]
    audits = [command("verify", str(peer.directory)) for peer in peers]  # with the outer optimizer of each step
    assert [audit.returncode for audit in audits] == [0, 0], [audit.stderr for audit in audits]
    assert any("every digest confirmed" in audit.stdout for audit in audits), [audit.stdout for audit in audits]


def test_a_run_that_nobody_published_a_foreign_key_and_a_machine_that_is_too_small_are_told_in_one_line(
    tmp_path: Path,
) -> None:
    author = Author(tmp_path)
    with network(tmp_path) as (_, at, _):
        missing = author.publish(at, "--pause")
        assert (missing.returncode, "no such file" in missing.stderr) == (2, True)
        Identity.load_or_create(tmp_path / "author.key")
        unknown = author.publish(at, "--pause")
        assert (unknown.returncode, "publish its recipe first" in unknown.stderr) == (2, True)

        run = author.published(at, str(RECIPE), *overrides(), "--admission", "token")
        other = Identity.load_or_create(tmp_path / "other.key")
        foreign = command("invite", run["address"], "--key", str(other.path))
        assert (foreign.returncode, "not that of the author" in foreign.stderr) == (2, True)
        uninvited = command("join", run["address"], "--yes", "--dir", str(tmp_path / "peer"), "--host", "127.0.0.1")
        assert (uninvited.returncode, "is invited" in uninvited.stderr) == (2, True)

        place = ["--dir", str(tmp_path / "peer"), "--host", "127.0.0.1", "--json"]
        fit = command("doctor", run["address"], *place)
        assert fit.returncode == 0, fit.stdout
        checks = {check["name"]: check for check in json.loads(fit.stdout)["checks"]}
        assert "the recipe needs" in checks["memory"]["text"]
        assert checks["swarm"]["result"] == "ok"

        address = run["address"][:-1] + ("1" if run["address"][-1] != "1" else "2")
        another = command("join", address, "--yes", "--dir", str(tmp_path / "peer"))
        assert another.returncode in (2, 3)
        assert "cut or mistyped" in another.stderr or "is not known there" in another.stderr
        for done in (missing, unknown, foreign):
            assert done.stderr.count("\n") == 1
