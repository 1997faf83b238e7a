"""The inner optimizer of a recipe, and a step of it at the rate of that step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from transformers.modeling_utils import PreTrainedModel

from prime_p2p.errors import BadInput
from prime_p2p.recipe import InnerRecipe
from prime_p2p.schedules import inner_rate
from prime_p2p.training.combined import Combined


def build(recipe: InnerRecipe, model: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer over the model's parameters; weight decay is for matrices, not for norms.

    Raises BadInput where it cannot run here.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rate = inner_rate(recipe, 0)
    if recipe.optimizer == "muon":
        return _muon(recipe, model, parameters)
    if recipe.optimizer == "adamw8bit":
        return _adamw8bit(recipe, parameters)
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(_groups(recipe, parameters), lr=rate, **_momentum(recipe))
    return _adamw(recipe, parameters)


def step(optimizer: torch.optim.Optimizer, recipe: InnerRecipe, global_step: int) -> None:
    """One inner step from the gradients in place, by what the recipe says at it; drops the gradients.

    Their norm is clipped over all parameters together.
    """
    rate, momentum = inner_rate(recipe, global_step), _momentum(recipe)
    for group in optimizer.param_groups:
        group["lr"] = rate
        group["weight_decay"] = recipe.weight_decay if group["decays"] else 0.0
        if "betas" in group:
            group["betas"] = recipe.betas
        else:
            group.update(momentum)
    if recipe.clip > 0:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, recipe.clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _adamw(recipe: InnerRecipe, parameters: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW (arXiv:1711.05101)."""
    return torch.optim.AdamW(_groups(recipe, parameters), lr=inner_rate(recipe, 0), betas=recipe.betas, fused=True)


def _adamw8bit(recipe: InnerRecipe, parameters: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW with moments in blocks of 8 bits (arXiv:2110.02861), as bitsandbytes has it."""
    if not all(parameter.is_cuda for parameter in parameters):
        raise BadInput('inner.optimizer: "adamw8bit" needs a GPU; this peer has none, or --device keeps it from it')
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        raise BadInput(
            f'inner.optimizer: "adamw8bit" needs bitsandbytes, which cannot be loaded ({str(error).splitlines()[0]}); '
            "install it with: pip install 'prime_p2p[gpu]'"
        ) from None
    return AdamW8bit(_groups(recipe, parameters), lr=inner_rate(recipe, 0), betas=recipe.betas)


def _muon(
    recipe: InnerRecipe, model: torch.nn.Module, parameters: Sequence[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """Muon for the hidden matrices; AdamW for embeddings, head, and all that is no matrix.

    Updates are scaled to be as large as those of AdamW usually are (arXiv:2502.16982), so one rate serves both.
    """
    if not hasattr(torch.optim, "Muon"):
        raise BadInput(f'inner.optimizer: torch {torch.__version__} has no "muon"; install torch 2.9 or a newer one')
    ends = _ends(model)
    hidden = [parameter for parameter in parameters if parameter.ndim == 2 and parameter not in ends]
    others = [parameter for parameter in parameters if parameter.ndim != 2 or parameter in ends]
    group = {"params": hidden, "weight_decay": recipe.weight_decay, "decays": True}
    muon = torch.optim.Muon([group], lr=inner_rate(recipe, 0), adjust_lr_fn="match_rms_adamw", **_momentum(recipe))
    return Combined([muon, _adamw(recipe, others)])


def _ends(model: torch.nn.Module) -> set[torch.nn.Parameter]:
    """What leads from tokens into the model and out of it: embeddings, and the head of a model of transformers."""
    modules: list[torch.nn.Module] = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    head = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    if head is not None:
        modules.append(head)
    return {parameter for module in modules for parameter in module.parameters()}


def _groups(recipe: InnerRecipe, parameters: Sequence[torch.nn.Parameter]) -> list[dict[str, Any]]:
    """Matrices, which decay, and vectors, which do not; ``decays`` says so for every step."""
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": recipe.weight_decay, "decays": True},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0, "decays": False},
    ]


def _momentum(recipe: InnerRecipe) -> dict[str, Any]:
    """That of Muon and SGD; there is nothing to look ahead along where there is none."""
    return {"momentum": recipe.momentum, "nesterov": recipe.nesterov and recipe.momentum > 0}


class Forgetful(Protocol):
    """What an optimizer has kept of the steps so far."""

    def clear(self) -> None: ...


class Stateful(Protocol):
    """An optimizer, to whoever saves it, or has it begin anew."""

    @property
    def state(self) -> Forgetful: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None: ...
