"""Temporary folders, and what is left of them when their owner ends in each way."""

from __future__ import annotations

import gc
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from prime_p2p import temporary
from prime_p2p.temporary import TemporaryFolder

OWNER = """
import sys
from prime_p2p.temporary import TemporaryFolder
folder = TemporaryFolder()
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def owner(home: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has a folder under `home`, and waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(home)},
        text=True,
    )
    try:
        assert process.stdout is not None
        (Path(process.stdout.readline().strip()) / "file").write_text("content")
        yield process
    finally:
        process.kill()
        process.communicate()


def remover(process: subprocess.Popen[str]) -> psutil.Process:
    (child,) = psutil.Process(process.pid).children()
    return child


def wait_until_empty(home: Path) -> None:
    deadline = time.monotonic() + 10
    while list(home.iterdir()):
        assert time.monotonic() < deadline, list(home.iterdir())
        time.sleep(0.02)


def test_a_folder_is_there_for_its_user_alone_and_gone_once_closed(home: Path) -> None:
    before = psutil.Process().children()
    with TemporaryFolder() as path:
        assert path.parent == home
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        (path / "folder").mkdir()
    assert list(home.iterdir()) == []
    assert psutil.Process().children() == before


def test_closing_twice_does_nothing_more(home: Path) -> None:
    folder = TemporaryFolder()
    folder.close()
    folder.close()
    assert list(home.iterdir()) == []


def test_a_folder_that_nobody_closed_goes_with_its_object(home: Path) -> None:
    folder = TemporaryFolder()
    assert folder.path.is_dir()
    del folder
    gc.collect()
    assert list(home.iterdir()) == []


def test_a_long_home_is_left_for_tmp(home: Path) -> None:
    with TemporaryFolder(longest_home=len(str(home)) - 1) as path:
        assert path.parent == Path("/tmp")
    assert not path.exists()


def test_a_folder_in_memory_is_made_where_there_is_such_a_place(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = home / "memory"
    monkeypatch.setattr(temporary, "_MEMORY", memory)
    with TemporaryFolder(in_memory=True) as path:
        assert path.parent == home
    memory.mkdir()
    with TemporaryFolder(in_memory=True) as path:
        assert path.parent == memory
    assert list(memory.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_folder_of_a_process_ended_by_a_signal_is_removed(home: Path, number: signal.Signals) -> None:
    with owner(home) as process:
        child = remover(process)
        process.send_signal(number)
        process.wait(10)
        wait_until_empty(home)
        child.wait(10)


def test_a_request_to_stop_that_reaches_the_remover_too_removes_the_folder_once_its_owner_ends(home: Path) -> None:
    with owner(home) as process:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            remover(process).send_signal(number)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        wait_until_empty(home)


def test_what_is_left_because_the_remover_was_killed_too_goes_when_the_next_folder_is_made(home: Path) -> None:
    with owner(home) as living, owner(home) as dead:
        remover(dead).kill()
        dead.kill()
        dead.wait(10)
        assert len(list(home.iterdir())) == 2
        with TemporaryFolder() as path:
            (kept,) = set(home.iterdir()) - {path}
        assert (kept / "file").read_text() == "content"
        assert living.poll() is None


def test_a_process_that_cannot_be_started_leaves_no_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError("no process")

    monkeypatch.setattr(subprocess, "Popen", fail)
    with pytest.raises(OSError, match="no process"):
        TemporaryFolder()
    assert list(home.iterdir()) == []
