"""Small checkpoints to save, of states that one can tell apart; as a program, where that goes wrong."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch

from prime_p2p.outer.state import OuterState
from prime_p2p.state.checkpoint import Checkpoint, LocalProgress
from prime_p2p.state.checkpoints import Checkpoints
from prime_p2p.state.saver import Saver


def small(step: int, n: int = 1000) -> Checkpoint:
    """A checkpoint whose every number says which one it is."""
    outer = OuterState(np.full(n, step, np.float32), np.full(n, -step, np.float32), step, tokens=step)
    optimizer = {"state": {0: {"mean": torch.full((n,), float(step))}}, "param_groups": [{"lr": 0.5}]}
    parameters = np.full(n, step + 0.5, np.float32)
    local = LocalProgress(parameters, optimizer, step, step, torch.full((8,), step % 256, dtype=torch.uint8))
    return Checkpoint(outer, local, "small", {"round": {"inner_steps": 5}})


def check(checkpoint: Checkpoint, n: int = 1000) -> None:
    """All of it is of one and the same save."""
    step, local = checkpoint.outer.step, checkpoint.local
    assert checkpoint.outer.digest == small(step, n).outer.digest
    assert (local.parameters == step + 0.5).all()
    assert (local.optimizer["state"][0]["mean"] == step).all()
    assert (local.position, local.tokens) == (step, step)
    assert (local.rng_state == step % 256).all()


def save_without_end(directory: Path, n: int) -> None:
    checkpoints = Checkpoints(directory)
    newest = checkpoints.load_newest()
    for step in itertools.count(newest.outer.step + 1 if newest else 1):
        checkpoints.save(small(step, n))


def killed_while_saving(directory: Path, seconds: float, n: int) -> None:
    """A process of its own saves, and is killed after so many seconds."""
    child = os.fork()
    if child == 0:
        save_without_end(directory, n)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def killed(directory: Path, trials: int, n: int) -> None:
    """Save, and be killed in the middle of it, so often."""
    torch.set_num_threads(1)  # a child must not need threads that only its parent has
    chance, reached, torn = random.Random(2), 0, 0
    began = time.monotonic()
    Checkpoints(directory).save(small(1, n))
    usual = time.monotonic() - began
    for _ in range(trials):
        killed_while_saving(directory, chance.random() * 3 * usual, n)
        torn += bool(list(directory.glob("*.partial")))
        newest = Checkpoints(directory).load_newest()
        assert newest is not None or not reached
        if newest is not None:
            check(newest, n)
            assert newest.outer.step >= reached
            reached = newest.outer.step
    print(reached, torn)


def read_only(directory: Path) -> None:
    """Try to save where that is not allowed, twice, and print what is said."""
    if os.geteuid() == 0:
        os.setuid(65534)  # root may write anywhere
    saver = Saver(Checkpoints(directory), lambda line: print(line, flush=True))
    saver.begin(small(2))
    saver.finish()
    saver.save_if_possible(small(3))
    newest = Checkpoints(directory).load_newest()
    assert newest is not None
    check(newest)
    print(newest.outer.step)


if __name__ == "__main__":
    if sys.argv[1] == "killed":
        killed(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        read_only(Path(sys.argv[2]))
