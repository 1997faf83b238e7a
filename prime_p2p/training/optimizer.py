"""The inner optimizer: AdamW with a rate that follows from the inner step alone, so peers and restarts agree on it."""

import math

import torch

from prime_p2p.recipe import InnerRecipe

COSINE_FLOOR = 0.1  # of the peak rate, as Chinchilla (arXiv:2203.15556) and DiLoCo (arXiv:2311.08105) anneal


def build(recipe: InnerRecipe, model: torch.nn.Module) -> torch.optim.AdamW:
    """AdamW (arXiv:1711.05101) over the model's parameters; weight decay is for matrices, not for norms."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate(recipe, 0), betas=recipe.betas, fused=True)


def learning_rate(recipe: InnerRecipe, step: int) -> float:
    """The rate of a global inner step (from 0): a linear warm-up, then constant or a cosine down to a tenth."""
    if step < recipe.warmup_steps:
        return recipe.learning_rate * (step + 1) / recipe.warmup_steps
    if recipe.schedule == "constant":
        return recipe.learning_rate
    done = min(1.0, (step - recipe.warmup_steps) / (recipe.total_steps - recipe.warmup_steps))
    cosine = (1 + math.cos(math.pi * done)) / 2
    return recipe.learning_rate * (COSINE_FLOOR + (1 - COSINE_FLOOR) * cosine)


def step(optimizer: torch.optim.Optimizer, recipe: InnerRecipe, global_step: int) -> None:
    """One inner step from the gradients in place: clip their norm, set the rate, update, and drop the gradients."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(recipe, global_step)
    if recipe.clip > 0:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, recipe.clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
