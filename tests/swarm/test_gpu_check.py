"""``scripts/gpu_check.py``, on a CPU: what it measures, it measures the same way there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"
SMALL = (
    "model.hidden_size=32",
    "model.intermediate_size=48",
    "model.layers=1",
    "model.context=16",
    "inner.batch_size=2",
    "round.inner_steps=20",
)


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=110, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_that_nothing_was_measured() -> None:
    ended = check()
    assert (ended.returncode, ended.stdout) == (0, "there is no GPU here: nothing was measured\n")


def test_two_peers_that_train_and_one_that_follows_come_to_the_same_bytes() -> None:
    sets = [part for value in SMALL for part in ("--set", value)]
    ended = check("--device", "cpu", "--recipe", "tiny", "--json", *sets)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["same_bytes"]
    assert [sorted(peer["digests"]) for peer in found["together"]] == [["1", "2", "3"]] * 3
    assert [peer["tokens_per_second"] > 0 for peer in found["together"]] == [True, True, False]
    assert min(found["alone"].values()) == found["alone"]["peak_bytes"] == 0  # a CPU does not say
