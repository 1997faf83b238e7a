"""Four peers against one, on the default recipe: the table of the README, measured again.

python scripts/compare_peers.py [--seeds 1 2 3] [--out runs/compare]

For each seed: a swarm of four peers, a swarm of one (a peer alone makes outer steps too), and one process that makes as
many inner steps of the same AdamW and nothing else. Prints a Markdown table of validation losses and times.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from prime_p2p.builtin_recipes import find_recipe
from prime_p2p.recipe import Recipe
from prime_p2p.training import model as models
from prime_p2p.training import optimizer as optimizers
from prime_p2p.training.data import Corpus, Sampler, validation_sequences
from prime_p2p.training.evaluation import validation_loss

SWARM_DEADLINE = 1200.0  # seconds


def swarm(peers: int, seed: int, out: Path) -> dict[str, float]:
    """A whole swarm on this machine; returns its final validation loss, compute share and wall seconds.

    A peer alone gets one core: with more, the threads of so small a model mostly wait for each other.
    """
    command = [sys.executable, "-m", "prime_p2p.cli", "swarm", "--peers", str(peers), "--seed", str(seed), "--json"]
    began = time.monotonic()
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores if peers > 1 else {min(cores)})
    try:
        result = subprocess.run(
            [*command, "--out", str(out)], stdout=subprocess.PIPE, check=True, text=True, timeout=SWARM_DEADLINE
        )
    finally:
        os.sched_setaffinity(0, cores)
    report = json.loads(result.stdout)
    wall = time.monotonic() - began
    return {"loss": report["val_loss"]["end"], "share": report["compute_share"], "seconds": wall}


def plain(recipe: Recipe, seed: int) -> float:
    """The validation loss after as many inner steps as a peer makes, with no outer step at all."""
    torch.set_num_threads(1)
    text = Corpus.load(recipe.data)
    sampler = Sampler(text.train, seed, "alone", recipe.inner.batch_size, recipe.model.context)
    validation = validation_sequences(text.validation, seed, recipe.eval.sequences, recipe.model.context)
    model = models.build(recipe.model, seed)
    optimizer = optimizers.build(recipe.inner, model)
    for step in range(recipe.round.inner_steps_before(recipe.run.outer_steps)):
        models.loss(model, sampler.batch(step)).backward()
        optimizers.step(optimizer, recipe.inner, step)
    return validation_loss(model, validation)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("runs/compare"))
    arguments = parser.parse_args()
    recipe = Recipe.load(find_recipe("peers/tiny.toml"))
    columns = ("seed", "one peer, AdamW only", "one peer", "four peers", "lower by", "wall time", "compute share")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for seed in arguments.seeds:
        four = swarm(4, seed, arguments.out / f"four-{seed}")
        one = swarm(1, seed, arguments.out / f"one-{seed}")
        alone = plain(recipe, seed)
        lower = 1 - four["loss"] / min(alone, one["loss"])
        print(
            f"| {seed} | {alone:.3f} | {one['loss']:.3f} | {four['loss']:.3f} | {lower:.1%} | "
            f"{four['seconds']:.0f} s | {four['share']:.0%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
