"""The model of a peer and what trains it: everything that happens on the device between two rounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from transformers import PreTrainedModel

from prime_p2p.errors import BadInput
from prime_p2p.recipe import InnerRecipe, Recipe
from prime_p2p.training import model as models
from prime_p2p.training import optimizer as optimizers
from prime_p2p.training.batch import Batch
from prime_p2p.training.evaluation import validation_loss
from prime_p2p.training.flat import FlatParameters
from prime_p2p.training.forward import Forward


class Trainer:
    """A model on a device, and its inner optimizer."""

    def __init__(
        self,
        recipe: Recipe,
        device: torch.device,
        folder: Path = Path(),
        build: Callable[[], PreTrainedModel] | None = None,
    ) -> None:
        """Build both; a relative ``model.source`` begins in ``folder``. A sharded model is made by ``build``.

        Raises BadInput where the model cannot be built, does not fit, or has an optimizer that cannot run there.
        """
        self.device = device
        try:
            if build is None:
                self.model = models.build(recipe.model, recipe.run.seed, folder, recipe.device.attention)
            else:
                self.model = build()
            torch.nn.Module.to(self.model, device)  # transformers' own ``to`` is typed for itself alone
        except (MemoryError, RuntimeError) as error:
            reason = str(error).split("\n", maxsplit=1)[0]
            raise BadInput(f"the model of the recipe does not fit into the memory of {device}: {reason}") from None
        self.parameters = FlatParameters(self.model)
        self.forward = Forward(self.model, recipe.device, device)
        self.optimizer = optimizers.build(recipe.inner, self.model)

    @property
    def compiles(self) -> bool:
        """Whether the first step is to compile the model, which takes long."""
        return self.forward.compiles

    def step(self, batch: Batch, recipe: InnerRecipe, global_step: int, targets: float | None = None) -> float:
        """One inner step, the run's ``global_step``-th; returns the loss before it, the mean over all targets, in nats.

        The batch goes through the model in ``recipe.accumulation`` parts, so that one part's activations are kept at a
        time; each counts for as much as it has targets. Where ranks share a batch, the mean of what they return is the
        loss; ``targets`` is then how many a rank has on average.
        """
        total, targets = torch.zeros((), device=self.device), targets or max(1, batch.targets)
        for part in batch.split(recipe.micro_batch):
            loss = self.forward.loss(part.to(self.device)) * (part.targets / targets)
            loss.backward()
            total += loss.detach()
        optimizers.step(self.optimizer, recipe, global_step)
        return total.item()

    def validation_loss(self, sequences: torch.Tensor) -> float:
        """The loss over fixed sequences (int64 [n, context + 1]), in nats a token."""
        with self.forward.autocast():
            return validation_loss(self.model, sequences.to(self.device))
