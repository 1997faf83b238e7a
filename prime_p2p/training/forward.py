"""The forward pass of a model on its device, as [device] of a recipe has it; parameters keep their names and type."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from prime_p2p.errors import BadInput
from prime_p2p.recipe import DeviceRecipe
from prime_p2p.training import model as models
from prime_p2p.training.batch import Batch


def precision_on(device: torch.device, recipe: DeviceRecipe) -> torch.dtype:
    """In which products of matrices are made there."""
    if recipe.precision == "auto":
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if has_bf16 else torch.float32
    return torch.bfloat16 if recipe.precision == "bfloat16" else torch.float32


def layers(model: PreTrainedModel) -> list[torch.nn.Module]:
    """The blocks that the model is a stack of."""
    kinds = set(model._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__ in kinds]


class Forward:
    """Makes losses of a model that is on ``device``.

    Layers are compiled, not the model: one compilation serves all of them, and the mask of attention is made outside,
    so that where no mask is needed the fastest kernels are used. ``backend`` is torch.compile's.
    """

    def __init__(
        self, model: PreTrainedModel, recipe: DeviceRecipe, device: torch.device, backend: str = "inductor"
    ) -> None:
        """Raises BadInput where the model cannot keep less than all activations."""
        self.model = model
        self.device = device
        self.precision = precision_on(device, recipe)
        if recipe.checkpoint_activations:
            if not model.supports_gradient_checkpointing:
                raise BadInput(
                    f"device.checkpoint_activations: {model.config.model_type} cannot do that; set it to false"
                )
            model.gradient_checkpointing_enable({"use_reentrant": False})
        compiled = device.type == "cuda" if recipe.compile is None else recipe.compile
        for layer in layers(model) if compiled else ():
            layer.compile(backend=backend)

    def loss(self, batch: Batch) -> torch.Tensor:
        """``models.loss`` of a batch that is on the device."""
        with self.autocast():
            return models.loss(self.model, batch)

    def autocast(self) -> torch.autocast:
        """Within it, products of matrices are made in ``precision``."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision is torch.bfloat16)
