import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import prime_p2p
from prime_p2p.builtin_recipes import find_recipe
from prime_p2p.errors import BadInput, PrimeError
from prime_p2p.lifetime import StopSignals
from prime_p2p.local_swarm.children import Child, stop_all, wait_for_output
from prime_p2p.local_swarm.supervision import Limits, Supervisor
from prime_p2p.local_swarm.swarm import SwarmOptions, run, threads_per_peer
from prime_p2p.monitor.console import open_console
from prime_p2p.monitor.report import HTML_NAME, JSON_NAME
from prime_p2p.monitor.view import SwarmView

FAKE = (sys.executable, str(Path(__file__).with_name("fake_swarm.py")))

Options = Callable[..., SwarmOptions]


@pytest.fixture(autouse=True)
def _children_find_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(prime_p2p.__file__).parents[1]))


@pytest.fixture
def behave(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives single peers a behaviour, as peer_2="dies"."""

    def set_behaviours(**behaviours: str) -> None:
        named = {name.replace("_", "-"): behaviour for name, behaviour in behaviours.items()}
        monkeypatch.setenv("FAKE_PEERS", json.dumps(named))

    return set_behaviours


@pytest.fixture
def options(tmp_path: Path) -> Options:
    def make(**changes: object) -> SwarmOptions:
        settings: dict[str, object] = {
            "recipe": find_recipe("tiny"),
            "peers": 3,
            "overrides": ("run.outer_steps=3",),
            "out": tmp_path / "out",
            "console": io.StringIO(),
            "command": FAKE,
            "limits": Limits(start=20.0, silence=20.0, straggler=20.0, stop=2.0),
            "judge": lambda recipe, folders, model: (5.5, 3.25),
        }
        return SwarmOptions(**(settings | changes))  # type: ignore[arg-type]

    return make


def pids(out: Path) -> list[int]:
    return [int(path.read_text()) for path in out.glob("peer-*/pid")]


def said(options: SwarmOptions) -> str:
    assert isinstance(options.console, io.StringIO)
    return options.console.getvalue()


def test_a_swarm_whose_peers_all_finish_ends_with_a_report(options: Options) -> None:
    chosen = options()
    report = run(chosen)
    assert (report["exit_code"], report["failure"], report["events"]) == (0, None, [])
    assert (report["peers"], report["peers_finished"], report["outer_steps"]) == (3, 3, 3)
    assert report["val_loss"] == {"start": 5.5, "end": 3.25}
    assert report["digests_agree"] is True
    assert [(one["outer_step"], one["group_size"]) for one in report["rounds"]] == [(1, 2), (2, 2), (3, 2)]
    assert chosen.out is not None
    assert json.loads((chosen.out / JSON_NAME).read_text()) == report
    assert "<svg" in (chosen.out / HTML_NAME).read_text()
    assert not any(psutil.pid_exists(pid) for pid in pids(chosen.out))


def test_without_a_terminal_there_is_one_line_for_each_outer_step(options: Options) -> None:
    chosen = options()
    run(chosen)
    assert [f"outer step {step}/3: loss" in said(chosen) for step in (1, 2, 3)] == [True] * 3
    assert said(chosen).count("outer step 2/3: loss") == 1


def test_the_checkpoints_of_the_peers_that_finished_are_judged(options: Options, behave: Callable[..., None]) -> None:
    behave(peer_1="dies")
    judged: list[list[str]] = []

    def judge(recipe: object, folders: list[Path], model: Path) -> tuple[float, float]:
        judged.append([folder.parent.name for folder in folders] + [model.name])
        return 5.0, 4.0

    run(options(judge=judge))
    assert judged == [["peer-2", "peer-3", "model"]]


def test_a_peer_that_dies_is_reported_and_the_others_finish(options: Options, behave: Callable[..., None]) -> None:
    behave(peer_2="dies")
    chosen = options()
    report = run(chosen)
    assert (report["exit_code"], report["peers_finished"]) == (0, 2)
    assert [peer["ending"] for peer in report["peer_details"]] == ["finished", "killed by SIGKILL", "finished"]
    assert len(report["events"]) == 1
    assert "peer-2 lost at outer step 1: killed by SIGKILL" in report["events"][0]
    assert report["events"][0] in said(chosen)


def test_the_last_words_of_a_peer_that_refuses_are_quoted(options: Options, behave: Callable[..., None]) -> None:
    behave(peer_1="refuses", peer_2="refuses", peer_3="refuses")
    report = run(options())
    assert (report["exit_code"], report["peers_finished"], report["digests_agree"]) == (1, 0, None)
    assert "exit code 2: prime-p2p: no such text (and 2 more)" in report["failure"]
    assert "\n" not in report["failure"]


def test_a_peer_that_hangs_is_killed_once_the_others_have_finished(
    options: Options, behave: Callable[..., None]
) -> None:
    behave(peer_3="deaf")
    report = run(options(limits=Limits(straggler=2.0, stop=0.5)))
    assert (report["exit_code"], report["peers_finished"]) == (0, 2)
    assert "stuck: no event for" in report["peer_details"][2]["ending"]


def test_a_frozen_peer_is_killed_as_one_that_hangs(options: Options, behave: Callable[..., None]) -> None:
    behave(peer_3="freezes")
    chosen = options(limits=Limits(straggler=2.0, stop=0.5))
    assert run(chosen)["peers_finished"] == 2
    assert chosen.out is not None
    assert not any(psutil.pid_exists(pid) for pid in pids(chosen.out))


def test_a_swarm_without_any_event_says_that_it_is_stuck(options: Options, behave: Callable[..., None]) -> None:
    behave(peer_1="waits", peer_2="waits", peer_3="deaf")
    report = run(options(limits=Limits(silence=0.5, stop=0.5)))
    assert report["exit_code"] == 1
    assert "no peer made all 3 outer steps: peer-1: stuck: no event" in report["failure"]


def test_a_peer_that_never_speaks_is_stopped_after_the_time_to_start(
    options: Options, behave: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prime_p2p.local_swarm.swarm._SECONDS_PER_CROWDED_PEER", 0.0)
    behave(peer_1="silent")
    report = run(options(peers=1, limits=Limits(start=6.0, stop=0.5)))
    assert report["exit_code"] == 1
    assert "gave no sign of life" in report["failure"]


def test_digests_that_differ_are_said_to(options: Options, behave: Callable[..., None]) -> None:
    behave(peer_2="forks")
    report = run(options())
    assert report["digests_agree"] is False
    assert [(one["held_by"], one["recorded_by"]) for one in report["rounds"]] == [(2, 3)] * 3


def test_a_judge_that_finds_no_checkpoint_fails_the_swarm_but_keeps_the_report(options: Options) -> None:
    def judge(*_: object) -> tuple[float, float]:
        raise BadInput("no checkpoint")

    chosen = options(judge=judge)
    report = run(chosen)
    assert (report["exit_code"], report["failure"]) == (1, "the final model cannot be judged: no checkpoint")
    assert chosen.out is not None
    assert (chosen.out / JSON_NAME).exists()


def test_a_bootstrap_node_that_does_not_start_is_quoted(options: Options) -> None:
    command = (sys.executable, "-c", "import sys; sys.exit('port taken')")
    with pytest.raises(PrimeError, match="bootstrap node did not start: exit code 1: port taken"):
        run(options(command=command))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_swarm_and_all_its_processes(
    number: signal.Signals, tmp_path: Path, behave: Callable[..., None]
) -> None:
    behave(peer_1="waits", peer_2="deaf")
    process, others = start_driver(tmp_path)
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    assert psutil.wait_procs(others, timeout=30)[1] == []
    report = json.loads((tmp_path / JSON_NAME).read_text())
    assert report["failure"] == f"stopped by {number.name} before the end"
    assert [peer["ending"] for peer in report["peer_details"]] == ["stopped", "stopped"]


def test_no_process_is_left_when_the_swarm_is_killed(tmp_path: Path, behave: Callable[..., None]) -> None:
    behave(peer_1="waits", peer_2="deaf")
    process, others = start_driver(tmp_path)
    process.kill()
    process.wait(60)
    assert psutil.wait_procs(others, timeout=30)[1] == []


def start_driver(out: Path) -> tuple["subprocess.Popen[str]", list[psutil.Process]]:
    """A swarm of two peers that never end, as a process that has made its first outer step; and its children."""
    process = subprocess.Popen([*FAKE, "swarm", "--out", str(out)], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "outer step 1/3" in line:
            break
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 3
    process.stderr.close()
    return process, children


def test_a_folder_with_an_earlier_report_is_refused(options: Options, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / JSON_NAME).write_text("{}")
    with pytest.raises(BadInput, match="holds the report of an earlier swarm"):
        run(options())


def test_the_default_folder_is_named_after_the_run_and_counted(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for expected in ("tiny", "tiny-2", "tiny-3"):
        report = run(options(out=None, peers=1, overrides=("run.outer_steps=1",)))
        assert report["directory"] == os.path.join("runs", expected)
        assert (tmp_path / "runs" / expected / JSON_NAME).exists()


def test_a_run_without_an_end_is_refused(options: Options) -> None:
    with pytest.raises(BadInput, match="outer_steps is 0"):
        run(options(overrides=("run.outer_steps=0",)))


def test_a_recipe_that_is_wrong_is_refused_before_anything_starts(options: Options, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="unknown key"):
        run(options(overrides=("run.steps=3",)))
    assert not (tmp_path / "out").exists()


def test_cores_are_shared_out_and_never_less_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert [threads_per_peer(peers) for peers in (1, 2, 3, 8, 100)] == [8, 4, 2, 1, 1]


def test_an_end_that_was_noticed_while_a_peer_was_being_stopped_is_reported_all_the_same(tmp_path: Path) -> None:
    def child(name: str, code: str) -> Child:
        return Child(name, (sys.executable, "-c", code), tmp_path / name, {})

    peer, bootstrap = child("peer-1", "raise SystemExit(3)"), child("bootstrap", "input()")
    try:
        while not peer.check():
            wait_for_output([peer], 0.1)
        view = SwarmView("run", ("peer-1",), 3, time.monotonic())
        supervisor = Supervisor([peer], bootstrap, view, open_console(view, io.StringIO()), Limits())
        supervisor.run(StopSignals())
        assert supervisor.peers[0].ending == "exit code 3"
    finally:
        stop_all([peer, bootstrap], 5.0)
