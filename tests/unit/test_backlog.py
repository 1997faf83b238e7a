"""Pieces on their way to a file."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from prime_p2p.state import backlog as backlogs
from prime_p2p.state.backlog import Backlog
from prime_p2p.state.piece_file import Contents, PieceFile

N = 100
DATA = memoryview(np.arange(N, dtype=np.float32).view(np.uint8).data)
PATIENCE = 60


class SlowFile(PieceFile):
    """Writes when it is told to; on a disk that is full from the second piece on, if it is told so."""

    full = False
    begun: threading.Event
    may_go_on: threading.Event

    def write(self, index: int, data: memoryview) -> None:
        self.begun.set()
        assert self.may_go_on.wait(PATIENCE)
        if self.full and index:
            raise OSError("No space left on device")
        super().write(index, data)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlowFile:
    monkeypatch.setattr(backlogs, "KEEP_AFTER", 0.0)
    file = SlowFile.nameless(tmp_path, Contents(1, 1, N, [blake3(DATA).digest()] * 2))
    file.begun, file.may_go_on = threading.Event(), threading.Event()
    return file


def test_pieces_are_written_one_after_the_other_and_nobody_waits(file: SlowFile) -> None:
    backlog = Backlog(file)
    for index in range(2):
        backlog.add(index, DATA)
    assert file.begun.wait(PATIENCE)
    assert file.have == set()
    file.may_go_on.set()
    while len(file.have) < 2:
        threading.Event().wait(0.01)
    assert backlog.stop()
    assert file.read_into(memoryview(bytearray(4 * N)), 1) == DATA


def test_after_stop_nothing_is_written_any_more(file: SlowFile) -> None:
    backlog = Backlog(file)
    for index in range(2):
        backlog.add(index, DATA)
    assert file.begun.wait(PATIENCE)
    threading.Timer(0.1, file.may_go_on.set).start()
    assert backlog.stop()
    assert file.have == {0}


def test_a_disk_that_does_not_answer_is_said_to_be_still_at_work(
    file: SlowFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlogs, "STOP_DEADLINE", 0.1)
    backlog = Backlog(file)
    backlog.add(0, DATA)
    assert file.begun.wait(PATIENCE)
    assert not backlog.stop()
    file.may_go_on.set()


def test_nothing_is_written_of_a_short_download(file: SlowFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlogs, "KEEP_AFTER", PATIENCE)
    file.may_go_on.set()
    backlog = Backlog(file)
    backlog.add(0, DATA)
    assert backlog.stop()
    assert file.have == set()


def test_a_full_disk_is_one_line_and_ends_the_writing(file: SlowFile, caplog: pytest.LogCaptureFixture) -> None:
    file.full = True
    file.may_go_on.set()
    backlog = Backlog(file)
    for index in (0, 1, 0):
        backlog.add(index, DATA)
    backlog._thread.join(PATIENCE)
    assert backlog.stop()
    assert file.have == {0}
    (record,) = caplog.records
    assert "No space left" in record.getMessage()
