"""The doctor as a command, beside a real bootstrap node and beside none."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import PATIENCE, Process, free_port, network

from prime_p2p.doctor import network as looks
from prime_p2p.doctor.checks import NAMES
from prime_p2p.doctor.facts import Reached, Unknown
from prime_p2p.doctor.place import Ask, Place
from prime_p2p.network.node import Node


def doctor(*arguments: str) -> tuple[int, list[str], str]:
    """Exit code, the lines of standard output, standard error."""
    process = Process("doctor", "--host", "127.0.0.1", "--port", str(free_port()), *arguments)
    try:
        return process.wait(), process.rest(), process.stderr
    finally:
        process.end()


@dataclass(frozen=True)
class Answer:
    address: str
    works: bool
    reason: str = ""


def test_others_are_asked_to_connect_to_the_port_that_is_meant_and_to_no_other(tmp_path: Path) -> None:
    asked: list[str] = []

    def dial_back(node: Node) -> Ask:
        async def ask(addresses: Sequence[str], timeout: float) -> list[Answer]:
            asked.extend(addresses)
            return [Answer(address, True) for address in addresses]

        return ask

    def look(port: int, address: str) -> Reached | Unknown:
        place = Place((address,), ("127.0.0.1",), port, dial_back=dial_back)
        return looks.look(place, tmp_path, lambda text: None, time.monotonic() + PATIENCE).reached

    with network(tmp_path) as (_, address, _), socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert look(port, address) == Unknown(f"nobody was asked: port {port} cannot be used")
        assert asked == []
        server.close()
        reached = look(port, address)
        assert isinstance(reached, Reached)
        assert reached.port == port
        assert [answer.address for answer in reached.answers] == asked
        assert asked[0].startswith(f"/ip4/127.0.0.1/tcp/{port}/p2p/")


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
    with network(tmp_path) as (_, _, start):
        peer = start("peer")
        ready = peer.event("ready")
        port = ready["address"].split("/")[4]
        code, lines, _ = doctor("--dir", str(tmp_path / "peer"), "--port", port)
        problems = [line.split()[1] for line in lines if line.startswith("problem")]
        assert (code, problems) == (1, ["folder", "port"])
        assert any(line.startswith("ok") and ready["peer_id"] in line for line in lines)  # its identity
        assert peer.process.poll() is None
