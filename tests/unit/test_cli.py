import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import prime_p2p
from prime_p2p import bootstrap_node, peer_process, status
from prime_p2p.doctor import examination as doctor_examination
from prime_p2p.doctor.facts import Needs
from prime_p2p.doctor.finding import Finding, Result
from prime_p2p.doctor.place import Place
from prime_p2p.errors import BadInput, Unreachable
from prime_p2p.local_swarm import swarm as local_swarm
from prime_p2p.monitor import logs
from prime_p2p.monitor.logs import LogFormat, LogLevel
from prime_p2p.network.daemon_config import RelayLimits
from prime_p2p.network.node import NodeConfig
from prime_p2p.network.ports import PEER_PORT, everywhere
from prime_p2p.swarm.swarm import SwarmOptions

Cli = Callable[..., int]

REPORT = {
    "name": "tiny",
    "directory": "runs/tiny",
    "peers": 2,
    "peers_finished": 2,
    "outer_steps": 3,
    "outer_steps_asked": 3,
    "wall_seconds": 12.0,
    "val_loss": {"start": 5.5, "end": 1.5},
    "digests_agree": True,
    "compute_share": 0.75,
    "bytes_sent_per_peer": 3000,
    "rounds": [{"group_size": 2, "digest": "ab" * 32}],
    "events": [],
    "failure": None,
    "exit_code": 0,
}


@pytest.fixture
def swarm_options(monkeypatch: pytest.MonkeyPatch) -> list[local_swarm.SwarmOptions]:
    """The options that the swarm command ran with; no swarm is started."""
    seen: list[local_swarm.SwarmOptions] = []

    def fake(options: local_swarm.SwarmOptions) -> dict[str, Any]:
        seen.append(options)
        return dict(REPORT)

    monkeypatch.setattr(local_swarm, "run", fake)
    return seen


@pytest.fixture
def peer_options(monkeypatch: pytest.MonkeyPatch) -> list[peer_process.PeerOptions]:
    """The options that the peer command ran with; no peer is started."""
    seen: list[peer_process.PeerOptions] = []

    def note(options: peer_process.PeerOptions) -> int:
        seen.append(options)
        return 7

    monkeypatch.setattr(peer_process, "run", note)
    return seen


def test_the_summary_is_all_there_is_on_standard_output(
    run: Cli, swarm_options: list[local_swarm.SwarmOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("swarm", "--peers", "2") == 0
    assert capsys.readouterr().out.startswith("2 of 2 peers made 3 of 3 outer steps")


def test_json_is_one_object_on_standard_output(
    run: Cli, swarm_options: list[local_swarm.SwarmOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("swarm", "--json") == 0
    assert json.loads(capsys.readouterr().out) == REPORT


def test_the_options_of_a_swarm_reach_it(run: Cli, swarm_options: list[local_swarm.SwarmOptions]) -> None:
    run("swarm", "--peers", "3", "--outer-steps", "5", "--seed", "9", "--out", "here", "--set", "round.grace=1")
    (options,) = swarm_options
    assert (options.peers, options.out) == (3, Path("here"))
    assert options.overrides == ("round.grace=1", "run.outer_steps=5", "run.seed=9")


def test_the_default_swarm_is_four_peers_of_the_tiny_recipe_from_any_folder(
    run: Cli, swarm_options: list[local_swarm.SwarmOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run("swarm")
    (options,) = swarm_options
    assert (options.peers, options.out, options.overrides) == (4, None, ())
    assert options.recipe.name == "tiny.toml"
    assert options.recipe.is_file()


def test_a_failed_swarm_ends_with_its_code_and_one_line(
    run: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = REPORT | {"exit_code": 1, "failure": "no peer made all 3 outer steps"}
    monkeypatch.setattr(local_swarm, "run", lambda options: failed)
    assert run("swarm", "--json") == 1
    output = capsys.readouterr()
    assert json.loads(output.out) == failed
    assert output.err == "prime-p2p: no peer made all 3 outer steps\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["swarm", "--peers", "0"],
        ["swarm", "--peers", "many"],
        ["swarm", "--no-such-option"],
        ["swarm", "--recipe"],
        ["peer", "--recipe", "tiny"],
        ["bootstrap", "--port", "65536"],
        ["no-such-command"],
        ["swarm", "--recipe", "no-such-recipe.toml"],
        ["swarm", "--set", "nonsense"],
        ["peer", "--recipe", "tiny", "--bootstrap", "x", "--set", "run.nonsense=1"],
        ["status", "--bootstrap", "nonsense"],
        ["contributions", "--bootstrap", "nonsense"],
        ["contributions", "--bootstrap", "x", "--since", "0"],
        ["contributions", "--bootstrap", "x", "--csv", "--json"],
        ["doctor", "--bootstrap", "nonsense"],
        ["doctor", "--recipe", "no-such-recipe.toml"],
    ],
)
def test_a_mistake_of_the_user_is_one_line_and_exit_code_2(
    arguments: list[str], run: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("prime-p2p: ")
    assert output.err.count("\n") == 1


def test_an_error_ends_with_its_own_code(
    run: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreachable(bootstrap: object, run: object) -> list[dict[str, Any]]:
        raise Unreachable("nobody answers\n\x1b at all")

    monkeypatch.setattr(status, "look", unreachable)
    assert run("status", "--bootstrap", "/ip4/192.0.2.1/tcp/1/p2p/x") == 3
    assert capsys.readouterr().err == "prime-p2p: nobody answers � at all\n"


def test_ctrl_c_ends_without_a_traceback(
    run: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(bootstrap: object, run: object) -> list[dict[str, Any]]:
        raise KeyboardInterrupt

    monkeypatch.setattr(status, "look", interrupted)
    assert run("status", "--bootstrap", "x") == 130
    assert "Traceback" not in capsys.readouterr().err


def test_the_status_can_be_had_as_json(
    run: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[tuple[str, ...], str | None]] = []

    def look(bootstrap: tuple[str, ...], run: str | None) -> list[dict[str, Any]]:
        asked.append((bootstrap, run))
        return [{"peer_id": "x"}]

    monkeypatch.setattr(status, "look", look)
    assert run("status", "--bootstrap", "a", "--bootstrap", "b", "--run", "tiny", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [{"peer_id": "x"}]
    assert asked == [(("a", "b"), "tiny")]


def test_the_options_of_a_peer_reach_it(run: Cli, peer_options: list[peer_process.PeerOptions]) -> None:
    arguments = (
        "--recipe tiny --bootstrap a --bootstrap b --dir home --identity key --host 127.0.0.1 --host ::1 --port 5"
        " --relayed --quic --announce c --threads 2 --device cpu --devices 3 --bandwidth 50 --set inner.batch_size=3"
        " --json --stop-with-parent --metrics-port 9100"
    )
    assert run("peer", *arguments.split()) == 7
    (options,) = peer_options
    assert options.recipe.inner.batch_size == 3
    assert (options.bootstrap, options.directory) == (("a", "b"), Path("home"))
    assert options.swarm == SwarmOptions(Path("key"), ("127.0.0.1", "::1"), 5, ("c",), 50.0, relayed=True, quic=True)
    assert (options.threads, options.device, options.launch.ranks) == (2, "cpu", 3)
    assert (options.json, options.stop_with_parent) == (True, True)
    assert options.metrics == ("127.0.0.1", 9100)


def test_a_peer_tells_where_it_is_only_where_that_was_said(
    run: Cli, peer_options: list[peer_process.PeerOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    peer = ["peer", "--recipe", "tiny", "--bootstrap", "a", "--name", "anne"]
    assert (run(*peer), run(*peer, "--location", "-33.9,151.2")) == (7, 7)
    told = [(options.swarm.name, options.swarm.location) for options in peer_options]
    assert told == [("anne", None), ("anne", (-34, 151))]
    for command in (peer, ["join", "a"]):
        assert run(*command, "--location", "91,0") == 2
        assert re.fullmatch(r"prime-p2p: --location '91,0': must be LAT,LON .*\n", capsys.readouterr().err)
    assert len(peer_options) == 2


@pytest.mark.parametrize("name", ["n" * 65, "two\nlines"])
@pytest.mark.parametrize("command", ["peer --recipe tiny --bootstrap a", "join a"])
def test_a_name_that_others_would_not_take_is_refused_before_anything_is_started(
    command: str, name: str, run: Cli, peer_options: list[peer_process.PeerOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*command.split(), "--name", name) == 2
    assert re.fullmatch(r"prime-p2p: the name .* cannot be told to others: .*\n", capsys.readouterr().err)
    assert peer_options == []


@pytest.mark.parametrize(
    ("arguments", "level", "log_format"),
    [
        ([], LogLevel.WARNING, LogFormat.TEXT),
        (["--verbose"], LogLevel.DEBUG, LogFormat.TEXT),
        (["--log-level", "info", "--log-format", "json"], LogLevel.INFO, LogFormat.JSON),
    ],
)
@pytest.mark.parametrize("command", ["peer --recipe tiny --bootstrap a", "bootstrap"])
def test_what_is_logged_and_how_can_be_chosen(
    run: Cli,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    arguments: list[str],
    level: LogLevel,
    log_format: LogFormat,
) -> None:
    seen: list[tuple[LogLevel, LogFormat]] = []
    monkeypatch.setattr(logs, "set_up", lambda *given: seen.append(given))
    monkeypatch.setattr(peer_process, "run", lambda options: 0)
    monkeypatch.setattr(bootstrap_node, "run", lambda config, announce, metrics, watch_parent: None)
    assert run(*command.split(), *arguments) == 0
    assert seen == [(level, log_format)]


def test_a_peer_lives_in_a_folder_named_after_the_run(run: Cli, peer_options: list[peer_process.PeerOptions]) -> None:
    run("peer", "--recipe", "tiny", "--bootstrap", "a", "--set", "run.name=mine")
    (options,) = peer_options
    assert (options.directory, options.swarm.identity) == (Path("runs/mine"), None)


def test_a_peer_listens_everywhere_on_a_port_to_forward_or_the_next_one(
    run: Cli, peer_options: list[peer_process.PeerOptions]
) -> None:
    run("peer", "--recipe", "tiny", "--bootstrap", "a")
    (options,) = peer_options
    assert (options.swarm.hosts, options.swarm.port, options.swarm.or_next) == (everywhere(), 31330, True)


def test_a_bootstrap_node_prints_its_address_and_nothing_else(
    run: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configs: list[NodeConfig] = []

    def serve(config: NodeConfig, announce: Callable[[str], None], metrics: object, *, watch_parent: bool) -> None:
        assert metrics is None
        configs.append(config)
        announce("/ip4/192.0.2.1/tcp/31337/p2p/x")

    monkeypatch.setattr(bootstrap_node, "run", serve)
    others = ["/ip4/192.0.2.2/tcp/31337/p2p/y", "/ip4/192.0.2.3/tcp/31337/p2p/z"]
    given = [part for other in others for part in ("--bootstrap", other)]
    limits = ["--relay-peers", "3", "--relay-gigabytes", "5"]
    assert run("bootstrap", "--announce", "/dns4/example.org/tcp/31337", *given, *limits) == 0
    assert capsys.readouterr().out == "/ip4/192.0.2.1/tcp/31337/p2p/x\n"
    (config,) = configs
    assert (config.hosts, config.port, config.relay) == (everywhere(), 31337, RelayLimits(3, gigabytes=5))
    assert config.announce == ("/dns4/example.org/tcp/31337",)
    assert (config.bootstrap, config.may_be_first) == (tuple(others), True)


@pytest.mark.parametrize(("result", "code"), [("warning", 0), ("problem", 1)])
def test_the_doctor_is_given_the_place_of_a_peer_and_ends_with_1_for_a_problem(
    result: Result, code: int, run: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[Path, Place]] = []
    usual = Place(hosts=everywhere(), port=PEER_PORT, or_next=True)

    def examine(folder: Path, place: Place, say: object, needs: Needs | None) -> list[Finding]:
        assert (needs is None) == (place == usual)
        seen.append((folder, place))
        return [Finding("port", result, "5")]

    monkeypatch.setattr(doctor_examination, "examine", examine)
    assert run("doctor") == code
    assert capsys.readouterr().out.startswith(f"{result}  port  5\n")
    arguments = "--bootstrap a --bootstrap b --host 127.0.0.1 --port 5 --announce c --recipe tiny"
    run("doctor", *arguments.split())
    run("doctor", *arguments.split(), "--dir", "home")
    place = Place(("a", "b"), ("127.0.0.1",), 5, False, ("c",), group=32)
    assert seen == [(Path("runs"), usual), (Path("runs/tiny"), place), (Path("home"), place)]


def test_a_taken_folder_is_refused_in_one_line(
    run: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(options: object) -> dict[str, Any]:
        raise BadInput("out holds the report of an earlier swarm")

    monkeypatch.setattr(local_swarm, "run", refuse)
    assert run("swarm") == 2
    assert capsys.readouterr().err == "prime-p2p: out holds the report of an earlier swarm\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        *(
            [*command.split(), "--help"]
            for command in (
                "",
                "swarm",
                "peer",
                "doctor",
                "bench",
                "contributions",
                "bench allreduce",
                "bench outer",
                "bench gather",
                "bench codec",
                "bench state",
            )
        ),
    ],
)
def test_help_is_given_without_loading_anything_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from prime_p2p.cli import main\n"
        f"sys.argv = ['prime-p2p', *{arguments!r}]\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    heavy = {'torch', 'transformers', 'hivemind', 'numpy', 'rich.live'} & set(sys.modules)\n"
        "    print(sorted(heavy), file=sys.stderr)\n"
    )
    root = Path(prime_p2p.__file__).parents[1]
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=root)
    assert (result.returncode, result.stderr) == (0, "[]\n")
    assert "Usage: prime-p2p" in result.stdout


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_file_gets_the_number_of_a_standard_stream_that_was_closed(closed: str) -> None:
    code = (
        "import os, sys\n"
        "from prime_p2p import cli\n"
        "cli.app = lambda *given, **options: int(os.open('/dev/null', os.O_RDONLY) < 3)\n"
        "cli.main()\n"
    )
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", code]
    root = Path(prime_p2p.__file__).parents[1]
    assert subprocess.run(command, timeout=60, cwd=root).returncode == 0


def test_what_runs_beside_a_peer_does_not_load_torch() -> None:
    code = (
        "import sys\n"
        "import prime_p2p.bootstrap_node, prime_p2p.local_swarm.swarm, prime_p2p.peer_process, prime_p2p.status\n"
        "import prime_p2p.doctor.network, prime_p2p.monitor.page\n"
        "assert 'torch' not in sys.modules\n"
    )
    root = Path(prime_p2p.__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=root)
