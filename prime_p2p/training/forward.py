"""The forward pass of a model on its device, as [device] of a recipe has it; parameters keep their names and type."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from prime_p2p.errors import BadInput
from prime_p2p.recipe import DeviceRecipe
from prime_p2p.training import model as models
from prime_p2p.training.batch import Batch


def precision_of(recipe: DeviceRecipe, has_bf16: bool) -> torch.dtype:
    """In which products of matrices are made on a device that ``has_bf16``, and is a GPU then, or not."""
    wanted = recipe.precision == "bfloat16" or (recipe.precision == "auto" and has_bf16)
    return torch.bfloat16 if wanted else torch.float32


def layers(model: PreTrainedModel) -> list[torch.nn.Module]:
    """The blocks that the model is a stack of."""
    kinds = set(model._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__ in kinds]


def with_checkpoints(model: PreTrainedModel) -> None:
    """Have a model keep only what goes into each layer. Raises BadInput where it cannot."""
    if not model.supports_gradient_checkpointing:
        raise BadInput(f"device.checkpoint_activations: {model.config.model_type} cannot do that; set it to false")
    # Before transformers 5.24 it may have its old name alone.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def _keeps_documents_apart(model: PreTrainedModel, device: torch.device) -> bool:
    """Whether the second of two packed documents comes out as it does alone."""
    if model.config._attn_implementation == "flash_attention_2":  # has no other way to take them
        return True
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            tokens = torch.arange(8, device=device)[None]
            packed = model(input_ids=tokens, position_ids=tokens % 4, use_cache=False).logits[:, 4:]
            alone = model(input_ids=tokens[:, 4:], use_cache=False).logits
    finally:
        model.train(was_training)
    return bool((packed - alone).abs().max() < 1e-3 * alone.std())


class Forward:
    """Makes losses of a model that is on ``device``.

    Layers are compiled, not the model: one compilation serves all of them, and the mask of attention is made outside,
    so that where no mask is needed the fastest kernels are used. ``backend`` is torch.compile's.
    """

    def __init__(
        self, model: PreTrainedModel, recipe: DeviceRecipe, device: torch.device, backend: str = "inductor"
    ) -> None:
        """Raises BadInput where the model cannot do without its activations, and is to."""
        self.model = model
        self.device = device
        self._apart = False  # whether it is known to keep packed documents apart
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        self.precision = precision_of(recipe, has_bf16)
        if recipe.checkpoint_activations:
            with_checkpoints(model)
        self.compiles = device.type == "cuda" if recipe.compile is None else recipe.compile
        for layer in layers(model) if self.compiles else ():
            layer.compile(backend=backend)

    def loss(self, batch: Batch) -> torch.Tensor:
        """``models.loss`` of a batch that is on the device.

        Raises BadInput where documents are packed into it that the model would not keep apart.
        """
        if batch.documents is not None and not self._apart:
            self._apart = _keeps_documents_apart(self.model, self.device)
            if not self._apart:
                kind = self.model.config.model_type
                raise BadInput(f"model: {kind} mixes documents that are packed into one sequence; do not pack them")
        with self.autocast():
            return models.loss(self.model, batch)

    def autocast(self) -> torch.autocast:
        """Within it, products of matrices are made in ``precision``."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision is torch.bfloat16)
