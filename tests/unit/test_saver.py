"""Saving beside training."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_checkpoints import check, small

from prime_p2p.errors import PrimeError
from prime_p2p.state import checkpoint as files
from prime_p2p.state import saver as savers
from prime_p2p.state.checkpoint import Checkpoint, Content
from prime_p2p.state.checkpoints import Checkpoints
from prime_p2p.state.saver import Saver

PATIENCE = 60


class SlowDisk:
    """A disk that writes when it is told to, and fails when it is told to."""

    def __init__(self, write: Callable[[Path, Content], None]) -> None:
        self._write = write
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        self.error: OSError | None = None

    def write(self, folder: Path, content: Content) -> None:
        self.begun.set()
        assert self.may_go_on.wait(PATIENCE)
        self._write(folder, content)
        if self.error is not None:
            raise self.error


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk(files.write)
    monkeypatch.setattr(files, "write", disk.write)
    yield disk
    disk.may_go_on.set()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def saver(tmp_path: Path, said: list[str]) -> Saver:
    return Saver(Checkpoints(tmp_path / "checkpoints"), said.append)


def newest(tmp_path: Path) -> Checkpoint:
    checkpoint = Checkpoints(tmp_path / "checkpoints").load_newest()
    assert checkpoint is not None
    check(checkpoint)
    return checkpoint


def test_training_goes_on_while_a_checkpoint_is_written_and_changes_nothing_of_it(
    tmp_path: Path, saver: Saver, disk: SlowDisk, said: list[str]
) -> None:
    for step in (1, 2):  # the second one is copied into the memory of the first
        checkpoint = small(step)
        saver.begin(checkpoint)
        assert disk.begun.wait(PATIENCE)
        for array in (checkpoint.outer.anchor, checkpoint.outer.momentum, checkpoint.local.parameters):
            array[:] = 99
        checkpoint.local.optimizer["state"][0]["mean"].fill_(99)
        checkpoint.local.optimizer["param_groups"][0]["lr"] = 99
        checkpoint.local.rng_state.fill_(99)
        disk.may_go_on.set()
        saver.finish()
        assert newest(tmp_path).local.optimizer["param_groups"] == [{"lr": 0.5}]
        disk.begun.clear()
        disk.may_go_on.clear()
    assert newest(tmp_path).outer.step == 2
    assert said == []


def test_there_is_one_writer_at_a_time_and_one_line_about_what_was_not_saved(
    tmp_path: Path, saver: Saver, disk: SlowDisk, said: list[str]
) -> None:
    saver.begin(small(1))
    assert disk.begun.wait(PATIENCE)
    saver.begin(small(2))
    assert said == ["no checkpoint at outer step 2: that of outer step 1 is still being written"]
    disk.may_go_on.set()
    saver.finish()
    assert newest(tmp_path).outer.step == 1
    saver.begin(small(3))
    saver.finish()
    assert newest(tmp_path).outer.step == 3
    assert len(said) == 1


def test_the_last_one_waits_for_the_one_before_and_is_on_the_disk_when_it_returns(
    tmp_path: Path, saver: Saver, disk: SlowDisk
) -> None:
    saver.begin(small(1))
    assert disk.begun.wait(PATIENCE)
    threading.Timer(0.2, disk.may_go_on.set).start()
    saver.save(small(2))
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["000001-step-1", "000002-step-2"]
    assert newest(tmp_path).outer.step == 2


def test_a_disk_that_is_full_is_one_line_and_the_next_checkpoint_is_tried_again(
    tmp_path: Path, saver: Saver, disk: SlowDisk, said: list[str]
) -> None:
    disk.may_go_on.set()
    saver.begin(small(1))
    saver.finish()
    disk.error = OSError(errno.ENOSPC, "No space left on device")
    saver.begin(small(2))
    saver.finish()
    assert said == ["no checkpoint at outer step 2: [Errno 28] No space left on device"]
    assert newest(tmp_path).outer.step == 1
    with pytest.raises(PrimeError, match=r"outer step 3 cannot be written: .*No space left.*the ones before"):
        saver.save(small(3))
    saver.save_if_possible(small(3))
    assert "No space left" in said[1]
    disk.error = None
    saver.begin(small(4))
    saver.finish()
    assert len(said) == 2
    assert newest(tmp_path).outer.step == 4


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, saver: Saver, said: list[str]) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    saver.begin(small(1))
    saver.finish()
    (line,) = said
    assert line.startswith("no checkpoint at outer step 1: ")
    assert "checkpoints" in line


def test_memory_that_is_not_there_is_one_line(saver: Saver, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise RuntimeError("can't allocate memory\nand a stack")

    monkeypatch.setattr(savers.torch, "empty", no_memory)
    checkpoint = small(1)
    saver.begin(checkpoint)
    assert said == ["no checkpoint at outer step 1: can't allocate memory"]
    assert not checkpoint.outer.lock.locked()


def test_a_disk_that_does_not_answer_is_not_waited_for_without_an_end(
    saver: Saver, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(savers, "DISK_DEADLINE", 0.1)
    saver.begin(small(1))
    with pytest.raises(PrimeError, match="look at that disk"):
        saver.save(small(2))
    disk.may_go_on.set()
    monkeypatch.setattr(savers, "DISK_DEADLINE", PATIENCE)
    saver.finish()
