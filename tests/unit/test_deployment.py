"""What is deployed gives the commands options that they have, and as much time to stop as they need."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from configparser import RawConfigParser
from pathlib import Path

import pytest
from public_runs import author, signed

from prime_p2p import bootstrap_node, peer_process
from prime_p2p.lifetime import STOP_PATIENCE
from prime_p2p.network.node import NodeConfig
from prime_p2p.public import look
from prime_p2p.public.manifest import SignedManifest

ROOT = Path(__file__).resolve().parents[2]
UNITS = [ROOT / "bootstrap" / "prime-p2p-bootstrap.service", ROOT / "peers" / "prime-p2p-peer.service"]
COMPOSE = ROOT / "bootstrap" / "compose.yaml"

Cli = Callable[..., int]


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The bootstrap addresses of what a command started; nothing is."""
    seen: list[tuple[str, ...]] = []

    def serve(config: NodeConfig, announce: object, metrics: object, *, watch_parent: bool) -> None:
        seen.append(config.bootstrap)

    def train(options: peer_process.PeerOptions) -> int:
        seen.append(options.bootstrap)
        return 0

    monkeypatch.setattr(bootstrap_node, "run", serve)
    monkeypatch.setattr(peer_process, "run", train)
    return seen


def service(unit: Path) -> dict[str, str]:
    """What a unit says of its service; of keys that come twice, the last."""
    parser = RawConfigParser(strict=False, delimiters=("=",), comment_prefixes=("#",))
    parser.read_string(unit.read_text())
    return dict(parser["Service"])


def filled(command: str, unit: Path) -> str:
    """A unit's command with the example of its environment."""
    if unit.parent.name == "peers":
        lines = (unit.parent / "peer.env").read_text().splitlines()
        environment = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    else:
        environment = dict(re.findall(r'^# (OPTIONS)="(.*)"$', unit.read_text(), re.MULTILINE))
    return re.sub(r"\$\{?(\w+)\}?", lambda name: environment[name[1]], command)


@pytest.fixture
def published(tmp_path: Path) -> SignedManifest:
    return signed(author(tmp_path))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_with_options_that_it_has(
    unit: Path,
    run: Cli,
    started: list[tuple[str, ...]],
    published: SignedManifest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(look, "look_at", lambda address, directory: look.Look(published))
    program, *arguments = shlex.split(filled(service(unit)["execstart"], unit))
    assert Path(program).name == "prime-p2p"
    assert run(*arguments) == 0
    assert len(started) == 1
    assert started[0]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_comes_back_after_failures_that_may_pass_and_waits_for_the_end(unit: Path) -> None:
    said = service(unit)
    assert (said["restart"], said["restartpreventexitstatus"], said["killmode"]) == ("on-failure", "2", "mixed")
    number, of = re.fullmatch(r"(\d+)(min)?", said["timeoutstopsec"]).groups()  # type: ignore[union-attr]
    assert int(number) * (60 if of else 1) > STOP_PATIENCE


def test_the_container_of_a_bootstrap_node_starts_it_with_options_that_it_has(
    run: Cli, started: list[tuple[str, ...]]
) -> None:
    text = COMPOSE.read_text()
    (command,) = re.findall(r"command: >-\n +(.*)\n", text)
    command = re.sub(r"\$\{PUBLIC_IP:\?[^}]*\}", "203.0.113.7", command)
    (example,) = re.findall(r'OPTIONS="(.*)"', text)
    assert run("bootstrap", *shlex.split(command.replace("${OPTIONS:-}", example))) == 0
    assert len(started[0]) == 1
