"""Saving beside training."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_checkpoints import check, small

from prime_p2p.allreduce.codec import BlockVector
from prime_p2p.errors import PrimeError
from prime_p2p.long_work import Advance
from prime_p2p.outer import state as outer_state
from prime_p2p.outer.nesterov import OuterOptimizer
from prime_p2p.outer.state import OuterState
from prime_p2p.state import checkpoint as files
from prime_p2p.state import saver as savers
from prime_p2p.state.checkpoint import Checkpoint
from prime_p2p.state.checkpoints import Checkpoints
from prime_p2p.state.saver import Saver

PATIENCE = 60


class SlowDisk:
    """A disk that writes the outer state when it is told to, and fails when it is told to."""

    def __init__(self, write_outer: Callable[[Path, OuterState, Advance], None]) -> None:
        self._write_outer = write_outer
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        self.error: OSError | None = None

    def write_outer(self, folder: Path, outer: OuterState, advance: Advance) -> None:
        self.begun.set()
        assert self.may_go_on.wait(PATIENCE)
        self._write_outer(folder, outer, advance)
        if self.error is not None:
            raise self.error


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk(files.write_outer)
    monkeypatch.setattr(files, "write_outer", disk.write_outer)
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
    for step in (1, 2):
        checkpoint = small(step)
        saver.begin(checkpoint)
        assert disk.begun.wait(PATIENCE)
        checkpoint.local.parameters[:] = 99
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


def test_who_watches_is_told_of_every_byte_and_which_are_written_beside_training(tmp_path: Path, watched: Any) -> None:
    saver = Saver(Checkpoints(tmp_path / "checkpoints"), print, watched)
    checkpoint = small(1)
    saver.begin(checkpoint)
    saver.finish()
    assert all(work.done == work.total for work in watched.works)
    assert [work.aside for work in watched.works] == [False, True]
    saver.save(small(2))
    assert [work.aside for work in watched.works] == [False, True, False, False]
    files_of = (tmp_path / "checkpoints" / "000002-step-2").glob("*.safetensors")
    headers = 8192
    written = sum(path.stat().st_size for path in files_of)
    assert written - headers < sum(work.done for work in watched.works[2:]) < written


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


def test_an_outer_step_comes_when_the_state_before_it_is_written(
    tmp_path: Path, saver: Saver, disk: SlowDisk, said: list[str]
) -> None:
    checkpoint = small(1)
    saver.begin(checkpoint)
    assert disk.begun.wait(PATIENCE)
    threading.Timer(0.2, disk.may_go_on.set).start()
    checkpoint.outer.apply(BlockVector.empty(1000), 1, OuterOptimizer())
    saver.finish()
    assert newest(tmp_path).outer.step == 1
    assert checkpoint.outer.step == 2
    assert said == []


def test_an_outer_step_does_not_wait_for_a_slow_disk_without_an_end(
    tmp_path: Path, saver: Saver, disk: SlowDisk, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outer_state, "HOLD_DEADLINE", 0.1)
    checkpoint = small(1)
    saver.begin(checkpoint)
    assert disk.begun.wait(PATIENCE)
    checkpoint.outer.apply(BlockVector.empty(1000), 1, OuterOptimizer())
    disk.may_go_on.set()
    saver.finish()
    assert said == ["no checkpoint at outer step 1: the disk was so slow that the next outer step came first"]
    assert list((tmp_path / "checkpoints").iterdir()) == []
    saver.begin(small(2))
    saver.finish()
    assert newest(tmp_path).outer.step == 2


@pytest.mark.parametrize("kind", [MemoryError, RuntimeError, OSError])
def test_what_goes_wrong_before_training_goes_on_is_one_line(
    tmp_path: Path, saver: Saver, said: list[str], monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def fail(*_: object) -> None:
        raise kind("no memory\nand a stack")

    checkpoint = small(1)
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_local", fail)
        saver.begin(checkpoint)
    assert said == ["no checkpoint at outer step 1: no memory"]
    assert list((tmp_path / "checkpoints").iterdir()) == []
    began = time.monotonic()
    checkpoint.outer.apply(BlockVector.empty(1000), 1, OuterOptimizer())
    assert time.monotonic() - began < outer_state.HOLD_DEADLINE / 2


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
