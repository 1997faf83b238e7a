"""How large a model is, and what an inner step of it keeps, found by going through it without memory or values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from prime_p2p.recipe import DeviceRecipe, ModelRecipe
from prime_p2p.training import model as models
from prime_p2p.training.batch import Batch
from prime_p2p.training.cross_entropy import PIECE
from prime_p2p.training.forward import layers, with_checkpoints

_PIECES = 3  # float32 tensors of PIECE elements that a loss has at a time


@dataclass(frozen=True)
class Size:
    """Of a model: its parameters, its layers, their width, and the tokens of its vocabulary; ``features`` are the
    widths of what goes into and comes out of its matrices, all together."""

    parameters: int
    layers: int
    width: int
    vocabulary: int
    features: int


def size_of(recipe: ModelRecipe) -> Size:
    """Of the model that ``models.build`` makes. Raises BadInput where it makes none."""
    config = models.config_of(recipe)
    with torch.device("meta"):
        model = models.from_config(config)
    shapes = [parameter.shape for parameter in model.parameters()]
    parameters = sum(shape.numel() for shape in shapes)
    features = sum(sum(shape[-2:]) for shape in shapes if len(shape) > 1)
    return Size(parameters, config.num_hidden_layers, config.hidden_size, config.vocab_size, features)


def activation_bytes(recipe: ModelRecipe, device: DeviceRecipe, precision: torch.dtype) -> tuple[int, int]:
    """About what an inner step has at its peak, which is where the loss is, beside parameters and gradients.

    Returns:
        Bytes whatever the batch is (the weights in ``precision`` where that is not theirs), and bytes a sequence.
    """
    config = models.config_of(recipe, device.attention)
    with FakeTensorMode():
        # There are no experts in float32 without values, so for float32 everything is counted twice.
        mixed = precision is torch.bfloat16 and not _has_experts(config)
        model = models.from_config(config, torch.float32 if mixed else torch.bfloat16).train()
        sequence, copies = _kept(model, recipe.context, mixed), _copies(model) if mixed else 0
        if device.checkpoint_activations:
            blocks = layers(model)
            of_blocks = sum(map(_copies, blocks)) if mixed else 0
            with_checkpoints(model)
            # One layer after the other is computed again, in the backward pass.
            sequence = _kept(model, recipe.context, mixed) + sequence // len(blocks)
            copies += of_blocks // len(blocks) - of_blocks
    logits = precision.itemsize * recipe.context * config.vocab_size
    pieces = _PIECES * 4 * min(PIECE, recipe.context * config.vocab_size)
    return copies + pieces, sequence - copies + logits


def _has_experts(config: PretrainedConfig) -> bool:
    return any(hasattr(config, key) for key in ("num_experts", "num_local_experts", "n_routed_experts"))


def _copies(module: torch.nn.Module) -> int:
    """Bytes of the bfloat16 copies that torch's autocast makes of a module's matrices."""
    kinds = (torch.nn.Linear, Conv1D)
    return sum(2 * inner.weight.numel() for inner in module.modules() if isinstance(inner, kinds))


def _kept(model: PreTrainedModel, context: int, mixed: bool) -> int:
    """Bytes that autograd keeps of the loss of one sequence, without the parameters.

    ``mixed`` is bfloat16 as torch's autocast has it, otherwise float32: of a model in bfloat16, everything twice.
    Leaves out the mask of attention, which a real pass does without.
    """
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage, is_mask = tensor.untyped_storage(), tensor.ndim == 4 and tensor.shape[1:] == (1, context, context)
        if storage._cdata not in own and not is_mask:
            kept[storage._cdata] = storage.nbytes() * (2 if not mixed and tensor.dtype is torch.bfloat16 else 1)
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=mixed),
    ):
        models.loss(model, Batch(torch.zeros(1, context + 1, dtype=torch.int64)))
    return sum(kept.values())
