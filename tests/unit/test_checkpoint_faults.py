"""Saves that are cut short anywhere: whatever was whole before is whole after."""

from __future__ import annotations

import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import small_checkpoints
from small_checkpoints import small

from prime_p2p.state.checkpoints import Checkpoints

BIG = 200_000  # elements: a save takes some milliseconds, so a kill meets it in the middle


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Every write beyond this many bytes of a file fails, as on a disk that is full there."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_at_any_byte_leaves_the_older_ones_and_nothing_else(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(small(step))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    longest = max(len(content) for content in before.values())
    offsets = random.Random(1).sample(range(longest), 100)
    for offset in offsets:
        with files_of_at_most(offset), pytest.raises(OSError, match=r"(?i)too large"):
            checkpoints.save(small(3))
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before, offset
    checkpoints.save(small(3))
    newest = checkpoints.load_newest()
    assert newest is not None
    assert newest.outer.step == 3


def test_a_process_that_is_killed_while_it_saves_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    program = [sys.executable, small_checkpoints.__file__, "killed", str(tmp_path), "100", str(BIG)]
    result = subprocess.run(program, capture_output=True, text=True, timeout=100)
    assert (result.returncode, result.stderr) == (0, "")
    reached, torn = map(int, result.stdout.split())
    assert reached > 10
    assert torn > 10  # so often the kill came in the middle


def test_a_folder_that_became_read_only_is_one_line_for_each_checkpoint_and_the_older_one_stays() -> None:
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        home.chmod(0o755)
        directory = home / "checkpoints"
        Checkpoints(directory).save(small(1))
        directory.chmod(0o555)
        program = [sys.executable, small_checkpoints.__file__, "read-only", str(directory)]
        result = subprocess.run(program, capture_output=True, text=True, timeout=100)
        directory.chmod(0o755)
    assert (result.returncode, result.stderr) == (0, "")
    first, second, newest = result.stdout.splitlines()
    assert first.startswith("no checkpoint at outer step 2: [Errno 13] Permission denied")
    assert second.startswith("the checkpoint of outer step 3 cannot be written: [Errno 13] Permission denied")
    assert newest == "1"


def test_a_tear_at_any_byte_of_any_file_is_noticed_and_the_older_one_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home, torn = tmp_path / "whole", tmp_path / "torn"
    for step in (1, 2):
        Checkpoints(home).save(small(step, 50))
    chance = random.Random(3)
    for trial in range(100):
        shutil.copytree(home, torn)
        path = chance.choice(sorted((torn / "000002-step-2").iterdir()))
        content = bytearray(path.read_bytes())
        where = chance.randrange(len(content))
        if trial % 2:
            content[where] ^= 1 << chance.randrange(8)
        path.write_bytes(content if trial % 2 else content[:where])
        caplog.clear()
        newest = Checkpoints(torn).load_newest()
        assert newest is not None
        assert newest.outer.step == 1, (trial, path, where)
        (record,) = caplog.records
        assert "000002-step-2" in record.getMessage()
        assert "\n" not in record.getMessage()
        shutil.rmtree(torn)


def test_a_damaged_one_does_not_take_the_place_of_a_whole_one(tmp_path: Path) -> None:
    for step in (1, 2):
        Checkpoints(tmp_path).save(small(step))
    (tmp_path / "000002-step-2" / "local.safetensors").write_bytes(b"")
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.load_newest() is not None
    checkpoints.save(small(3))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001-step-1", "000003-step-3"]
