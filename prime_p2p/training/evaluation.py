"""How good a model is: one figure every peer of a run would find for the same parameters."""

import torch
from transformers import PreTrainedModel

from prime_p2p.training.batch import Batch
from prime_p2p.training.model import loss


def validation_loss(model: PreTrainedModel, sequences: torch.Tensor, batch_size: int = 16) -> float:
    """Mean cross-entropy over fixed sequences (int64 [n, context + 1]), in nats a token."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            total = sum(loss(model, Batch(tokens)).item() * len(tokens) for tokens in sequences.split(batch_size))
    finally:
        model.train(was_training)
    return total / len(sequences)
