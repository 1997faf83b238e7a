"""What one rank has of a peer's training: its shard of the model and of the inner optimizer, and what it does with it.

All ranks do the same at the same time. Where they gather (in a step, an evaluation, the optimizer's state) they wait
for each other, with a deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from prime_p2p.recipe import InnerRecipe, Recipe
from prime_p2p.training import model as models
from prime_p2p.training.batch import Batch
from prime_p2p.training.ranks import optimizer_state, sharding
from prime_p2p.training.ranks.window import Window
from prime_p2p.training.trainer import Trainer


@dataclass(frozen=True)
class Place:
    """Which of how many ranks this is, on a device of which ``kind`` (cpu or cuda), and the folder where they meet."""

    rank: int
    ranks: int
    kind: str
    folder: Path

    @property
    def device(self) -> torch.device:
        return torch.device(self.kind, self.rank) if self.kind == "cuda" else torch.device(self.kind)

    def join(self) -> DeviceMesh:
        """Meet the others, with a deadline."""
        return sharding.join_group(self.folder, self.rank, self.ranks, self.device)


class Part:
    """The part of one rank; ``build`` makes its shard of the model. Raises BadInput where the device has no room."""

    def __init__(self, recipe: Recipe, place: Place, window: Window, build: Callable[[], PreTrainedModel]) -> None:
        self.trainer = Trainer(recipe, place.device, build=build)
        self.parameters, self._optimizer = self.trainer.parameters, self.trainer.optimizer
        self._window = window
        self._first = place.rank == 0

    def step(self, share: Batch, inner: InnerRecipe, global_step: int, targets: float) -> float:
        """One inner step, on this rank's share of a batch; the loss is the mean of what the ranks return.

        ``targets`` is how many targets a rank has on average.
        """
        return self.trainer.step(share, inner, global_step, targets)

    def validation_loss(self, sequences: torch.Tensor) -> float:
        """Of the whole model on all of the sequences: the same figure at every rank."""
        return self.trainer.validation_loss(sequences)

    def read(self, start: int, stop: int) -> None:
        """Copy what this rank has of the elements ``start`` to ``stop`` into the window."""
        self.parameters.read(start, self._window.array[: stop - start])

    def write(self, start: int, stop: int) -> None:
        """Set what this rank has of them to what the window holds."""
        self.parameters.write(start, self._window.array[: stop - start])

    def whole_state(self) -> dict[str, Any]:
        """The optimizer's state over whole parameters; its tensors are at rank 0 alone."""
        return optimizer_state.whole(self._optimizer.state_dict(), keep=self._first)

    def load_state(self, state: dict[str, Any]) -> None:
        """Take this rank's shard of a whole state, see ``optimizer_state.load``."""
        optimizer_state.load(self._optimizer, state)

    def clear_state(self) -> None:
        """Forget what the optimizer has kept of the steps so far."""
        self._optimizer.state.clear()


def build_empty(recipe: Recipe, mesh: DeviceMesh) -> PreTrainedModel:
    """A rank's shard of the model of a recipe, before rank 0 has told it the values."""
    with sharding.without_values():
        model = models.build(recipe.model, recipe.run.seed, attention=recipe.device.attention, trained=True)
    sharding.shard(model, mesh)
    return model
