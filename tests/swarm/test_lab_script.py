"""``scripts/wan_lab.py`` as a user runs it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "wan_lab.py"
PATIENCE = 60.0  # seconds


def lab(*arguments: str) -> list[str]:
    return [sys.executable, str(SCRIPT), *arguments]


def test_the_command_runs_on_every_host_and_the_worst_exit_code_counts() -> None:
    command = 'echo "$LAB_HOST $LAB_ADDRESS $LAB_FIRST_ADDRESS"; [ $LAB_HOST = a ] || exit 3'
    arguments = ["--host", "a:50:20", "--host", "b", "--", "sh", "-c", command]
    ended = subprocess.run(lab(*arguments), capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 3
    assert ended.stderr == ""
    assert sorted(ended.stdout.splitlines()) == ["a 10.77.0.1 10.77.0.1", "b 10.77.0.2 10.77.0.1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "at least one --host and a command"),
        (["--host", "a"], "at least one --host and a command"),
        (["--host", "a:fast", "--", "true"], "NAME:UP:DOWN:DELAY"),
        (["--host", "a:1:2:3:4", "--", "true"], "NAME:UP:DOWN:DELAY"),
        (["--host", "a:-1", "--", "true"], "0 or more"),
        (["--host", "a", "--host", "a:1", "--", "true"], "same name"),
        (["--host", "/a", "--", "true"], "name"),
        (["--hosts", "a", "--", "true"], "--hosts"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], said: str) -> None:
    ended = subprocess.run(lab(*arguments), capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert said in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_told_to_stop_it_asks_its_commands_to_and_leaves_nothing(number: signal.Signals) -> None:
    command = "trap 'echo stopped; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    arguments = ["--host", "a", "--host", "b", "--", "sh", "-c", command]
    with subprocess.Popen(lab(*arguments), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["up\n"] * 2
        descendants = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        assert process.stdout.read() == "stopped\n" * 2
        assert process.wait(PATIENCE) == 128 + number
    assert psutil.wait_procs(descendants, timeout=10)[1] == []


def test_killed_it_leaves_nothing() -> None:
    arguments = ["--host", "a", "--host", "b", "--", "sh", "-c", "echo up; sleep 98765"]
    with subprocess.Popen(lab(*arguments), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["up\n"] * 2
        descendants = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        _, alive = psutil.wait_procs(descendants, timeout=10)
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []
