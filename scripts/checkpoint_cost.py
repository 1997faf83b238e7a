"""What saving costs a peer: how long training stops for a checkpoint, and how much work goes on beside it.

python scripts/checkpoint_cost.py [--recipe FILE] [--set KEY=VALUE ...] [--dir DIR] [--threads N]

The shares are of the inner steps between two checkpoints; the outer steps in between would only make them smaller.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from prime_p2p.builtin_recipes import find_recipe
from prime_p2p.outer.state import OuterState
from prime_p2p.recipe import Recipe
from prime_p2p.state.checkpoint import Checkpoint, LocalProgress
from prime_p2p.state.checkpoints import Checkpoints
from prime_p2p.state.saver import Saver
from prime_p2p.training import model as models
from prime_p2p.training import optimizer as optimizers
from prime_p2p.training.batch import Batch
from prime_p2p.training.flat import FlatParameters

INNER_STEPS, SAVES = 20, 7


class Training:
    """The model and the inner optimizer of a recipe, on batches of no meaning."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._model = models.build(recipe.model, recipe.run.seed)
        self._optimizer = optimizers.build(recipe.inner, self._model)
        self._parameters = FlatParameters(self._model)
        self.outer = OuterState.initial(self._parameters.to_numpy())

    def inner_step(self) -> float:
        """One inner step; returns its seconds."""
        recipe, began = self._recipe, time.monotonic()
        shape = (recipe.inner.batch_size, recipe.model.context + 1)
        models.loss(self._model, Batch(torch.randint(256, shape))).backward()
        optimizers.step(self._optimizer, recipe.inner, 0)
        return time.monotonic() - began

    def checkpoint(self) -> Checkpoint:
        """As it is right after an outer step."""
        optimizer = self._optimizer.state_dict()
        local = LocalProgress(self.outer.anchor, optimizer, 0, 0, torch.get_rng_state())
        return Checkpoint(self.outer, local, self._recipe.run.name, self._recipe.shared())


def measure(recipe: Recipe, directory: Path) -> None:
    training = Training(recipe)
    inner_step = statistics.median([training.inner_step() for _ in range(INNER_STEPS)][INNER_STEPS // 4 :])
    saver = Saver(Checkpoints(directory), print)
    stops, works, waits = [], [], []
    for _ in range(SAVES):
        began, worked = time.monotonic(), time.process_time()
        saver.begin(training.checkpoint())
        stops.append(time.monotonic() - began)
        saver.finish()
        waits.append(time.monotonic() - began)
        works.append(time.process_time() - worked)
    size = sum(path.stat().st_size for path in next(iter(directory.iterdir())).iterdir())
    # The first copy gets its memory new, which the later ones use again.
    first, stop, work, wait = stops[0], *map(statistics.median, (stops[1:], works[1:], waits[1:]))
    every = 10 * recipe.round.inner_steps * inner_step
    print(f"parameters            {len(training.outer.anchor):,}; a checkpoint has {size / 1e6:.1f} MB")
    print(
        f"10 outer steps        {every:.1f} s ({recipe.round.inner_steps} inner steps each, {inner_step * 1e3:.1f} ms)"
    )
    print(f"training stops for    {stop * 1e3:.1f} ms, the first time {first * 1e3:.1f} ms")
    print(f"on the disk after     {wait * 1e3:.0f} ms, with {work * 1e3:.0f} ms of processor time in all")
    print(f"cost, a core spare    {stop / every:.3%} of the training time at one checkpoint in 10 outer steps")
    print(f"cost, no core spare   {work / every:.3%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recipe", default="tiny")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--dir", type=Path, help="where to write; a temporary folder by default")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    recipe = Recipe.load(find_recipe(options.recipe), options.set)
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        measure(recipe, Path(directory))


if __name__ == "__main__":
    main()
