"""The example of the documentation, as a reader would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "own_loop.py"


@pytest.mark.timeout(240)
def test_the_example_started_twice_trains_together_and_ends_by_itself() -> None:
    first = subprocess.Popen([sys.executable, str(EXAMPLE)], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    try:
        address = first.stdout.readline().split()[-1]
        second = subprocess.run(
            [sys.executable, str(EXAMPLE), address], stdout=subprocess.PIPE, text=True, timeout=200, check=True
        )
        rest, _ = first.communicate(timeout=200)
    finally:
        first.kill()
        first.wait()
    assert first.returncode == 0
    for output in (rest, second.stdout):
        assert re.search(r"^outer step \d+ with 2 peers: loss", output, re.MULTILINE)


@pytest.mark.timeout(240)
def test_a_program_of_ones_own_that_is_killed_leaves_no_temporary_folder() -> None:
    with tempfile.TemporaryDirectory(prefix="pp", dir="/tmp") as temporary:
        command = [sys.executable, str(EXAMPLE)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"TMPDIR": temporary}) as program:
            try:
                assert program.stdout is not None
                program.stdout.readline()
                assert list(Path(temporary).glob("prime-p2p-*"))
            finally:
                program.kill()
        deadline = time.monotonic() + 10
        while list(Path(temporary).glob("prime-p2p-*")):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_the_example_fits_on_a_screen() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 40
