"""What one inner step is made on."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Batch:
    """Sequences of ``context + 1`` tokens, from which both inputs and targets are cut.

    Attributes:
        tokens: int64 [sequences, context + 1].
    """

    tokens: torch.Tensor

    @property
    def targets(self) -> int:
        """How many tokens there are to predict."""
        return self.tokens[:, 1:].numel()

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        return Batch(self.tokens.to(device))
