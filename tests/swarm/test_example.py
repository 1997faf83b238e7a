"""The example of the documentation, as a reader would run it."""

from __future__ import annotations

import re
import subprocess
import sys
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


def test_the_example_fits_on_a_screen() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 40
