"""A peer's training on several devices, as rank 0 leads it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from prime_p2p.recipe import InnerRecipe, Recipe
from prime_p2p.state.tensor_tree import flatten
from prime_p2p.training import model as models
from prime_p2p.training.batch import Batch
from prime_p2p.training.flat import FlatParameters
from prime_p2p.training.ranks import optimizer_state, sharding
from prime_p2p.training.ranks.crew import Crew
from prime_p2p.training.ranks.parameters import SharedParameters
from prime_p2p.training.ranks.part import Part, Place
from prime_p2p.training.ranks.window import ELEMENTS, Window


class ShardedTrainer:
    """What a ``Trainer`` is, with the model and the optimizer sharded over the ranks of this peer."""

    def __init__(self, recipe: Recipe, place: Place, crew: Crew, threads: int, folder: Path = Path()) -> None:
        """Build everything, at all ranks; a relative ``model.source`` begins in ``folder``, at rank 0 alone.

        Raises BadInput where the model cannot be built or has no room here, and RankLost.
        """
        self._crew = crew
        window = Window.create(ELEMENTS)
        crew.order(
            "build",
            recipe=recipe.model_dump_json(),
            ranks=place.ranks,
            folder=str(place.folder),
            device=place.kind,
            window=window.path,
            threads=threads,
        )
        with crew.naming_the_lost():
            mesh = place.join()

        def build() -> PreTrainedModel:
            model = models.build(recipe.model, recipe.run.seed, folder, recipe.device.attention)
            crew.answers()  # all have room for the values
            self._tell_values(FlatParameters(model), window)
            sharding.shard(model, mesh)
            return model

        self._part = Part(recipe, place, window, build)
        self.parameters = SharedParameters(crew, self._part, window)
        self.optimizer = ShardedOptimizer(crew, self._part)

    @property
    def compiles(self) -> bool:
        """Whether the first step is to compile the model, which takes long."""
        return self._part.trainer.compiles

    def step(self, batch: Batch, recipe: InnerRecipe, global_step: int) -> float:
        """One inner step, the run's ``global_step``-th; returns the loss before it, in nats a token."""
        self.parameters.changed()
        shares = batch.split(len(batch.tokens) // self._crew.ranks)
        tensors = [{name: value for name, value in vars(share).items() if value is not None} for share in shares]
        targets, inner = batch.targets / len(shares), recipe.model_dump_json()
        own = partial(self._part.step, shares[0], recipe, global_step, targets)
        loss, answers = self._crew.together(own, "step", tensors, inner=inner, global_step=global_step, targets=targets)
        return sum((loss, *(answer.values["result"] for answer in answers))) / len(shares)

    def validation_loss(self, sequences: torch.Tensor) -> float:
        """The loss over fixed sequences (int64 [n, context + 1]), in nats a token."""
        own = partial(self._part.validation_loss, sequences)
        loss, _ = self._crew.together(own, "validation_loss", {"sequences": sequences})
        return loss

    def _tell_values(self, whole: FlatParameters, window: Window) -> None:
        for start in range(0, whole.n, len(window.array)):
            stop = min(whole.n, start + len(window.array))
            whole.read(start, window.array[: stop - start])
            self._crew.order("write", start=start, stop=stop)
            self._crew.answers()


class ShardedOptimizer:
    """The inner optimizer of all ranks. Its state is that of one over whole parameters, with tensors on the CPU."""

    def __init__(self, crew: Crew, part: Part) -> None:
        self.state = ShardedState(crew, part)
        self._crew = crew
        self._part = part

    def state_dict(self) -> dict[str, Any]:
        state, _ = self._crew.together(self._part.whole_state, "whole_state")
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        encoded, tensors = flatten(optimizer_state.skeleton(self._part.trainer.optimizer, state))
        here = {name: tensor for name, tensor in tensors.items() if not tensor.is_meta}
        bare = {
            name: [list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]
            for name, tensor in tensors.items()
            if tensor.is_meta
        }
        self._crew.together(partial(self._part.load_state, state), "load_state", here, state=encoded, bare=bare)


class ShardedState:
    """What the optimizers of all ranks have kept of the steps so far."""

    def __init__(self, crew: Crew, part: Part) -> None:
        self._crew = crew
        self._part = part

    def clear(self) -> None:
        self._crew.together(self._part.clear_state, "clear_state")
