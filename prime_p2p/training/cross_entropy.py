"""The loss of a language model, for vocabularies of any size.

As wide as the vocabulary there are, at the peak, the logits and their gradient, both in the precision of the model.
What is float32 whatever that is (the exponentials, and their sum) is made for ``PIECE`` elements at a time.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

IGNORED = -100
"""A target that is nothing to predict."""

PIECE = 2**24
"""Elements of the logits that are float32 at a time: 64 MiB."""


def mean_cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """In nats a target, over those that are not ``IGNORED``: 0 where all are; fp32.

    Args:
        logits: [tokens, vocabulary], of any precision.
        targets: int64 [tokens].
    """
    mean: torch.Tensor = _MeanCrossEntropy.apply(logits, targets)
    return mean


class _MeanCrossEntropy(torch.autograd.Function):
    """The gradient is made along with the loss, while a piece of the logits is at hand."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        wanted = ctx.needs_input_grad[0]
        gradient = torch.empty_like(logits) if wanted else None
        count = (targets != IGNORED).sum().clamp(min=1)
        total = torch.zeros((), device=logits.device)
        step = max(1, PIECE // logits.shape[1])
        for start in range(0, len(targets), step):
            rows = slice(start, start + step)
            piece, target = logits[rows].float(), targets[rows]
            total += F.cross_entropy(piece, target, ignore_index=IGNORED, reduction="sum")
            if gradient is not None:
                counts = (target != IGNORED)[:, None]
                slope = torch.softmax(piece, dim=1)
                slope.scatter_add_(1, target.clamp(min=0)[:, None], -counts.to(slope.dtype))
                gradient[rows] = slope * (counts / count)
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return total / count

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * slopes[0].to(gradient.dtype), None
