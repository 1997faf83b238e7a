"""The doctor as a command, beside a real bootstrap node and beside none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from processes import Process, network

from prime_p2p.doctor.checks import NAMES


def doctor(*arguments: str) -> tuple[int, list[str], str]:
    """Exit code, the lines of standard output, standard error."""
    process = Process("doctor", "--host", "127.0.0.1", *arguments)
    try:
        return process.wait(), process.rest(), process.stderr
    finally:
        process.end()


def test_a_good_machine_is_told_so_and_a_dead_swarm_is_one_clear_line(tmp_path: Path) -> None:
    with network(tmp_path) as (bootstrap, address, _):
        code, lines, errors = doctor(
            "--bootstrap", address, "--dir", str(tmp_path / "new"), "--recipe", "tiny", "--json"
        )
        assert (code, errors) == (0, "")
        checks: dict[str, dict[str, Any]] = {check["name"]: check for check in json.loads("\n".join(lines))["checks"]}
        assert tuple(checks) == NAMES
        assert {checks[name]["result"] for name in ("packages", "folder", "daemon", "swarm", "clock")} == {"ok"}
        assert checks["daemon"]["figure"].startswith("answers after ")
        assert checks["clock"]["figure"] == "0.0 s off the swarm's"
        assert "Mbit/s down" in checks["bandwidth"]["figure"]
        assert not (tmp_path / "new").exists()
        bootstrap.end()

        code, lines, errors = doctor("--bootstrap", address, "--dir", str(tmp_path))
        assert (code, errors) == (1, "")
        (line,) = [line for line in lines if line.startswith("problem")]
        assert line.startswith("problem  swarm        no bootstrap peer answers: ")
        assert "refused" in line
        assert lines[-1].startswith("this machine cannot be a peer yet: 1 problem")


def test_a_running_peer_is_left_alone(tmp_path: Path) -> None:
    with network(tmp_path) as (_, address, start):
        peer = start("peer")
        ready = peer.event("ready")
        port = ready["address"].split("/")[4]
        code, lines, _ = doctor("--bootstrap", address, "--dir", str(tmp_path / "peer"), "--port", port)
        problems = [line.split()[1] for line in lines if line.startswith("problem")]
        assert (code, problems) == (1, ["folder", "port"])
        assert any(line.startswith("ok") and ready["peer_id"] in line for line in lines)  # its identity
        code, lines, _ = doctor("--bootstrap", ready["address"], "--dir", str(tmp_path / "other"))
        assert code == 0
        assert any(line.startswith(("ok       bandwidth", "warning  bandwidth")) for line in lines)
        assert peer.process.poll() is None
