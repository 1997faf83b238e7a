"""What one inner step is made on."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Batch:
    """Sequences of ``context + 1`` tokens, from which both inputs and targets are cut.

    Attributes:
        tokens: int64 [sequences, context + 1].
        documents: int64 of the same shape: which of the documents that are packed into its sequence each token belongs
            to; None where a sequence is one text.
    """

    tokens: torch.Tensor
    documents: torch.Tensor | None = None

    @property
    def targets(self) -> int:
        """How many tokens there are to predict: the first one of a document is none of them."""
        if self.documents is None:
            return self.tokens[:, 1:].numel()
        return int((self.documents[:, 1:] == self.documents[:, :-1]).sum())

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        return Batch(self.tokens.to(device), None if self.documents is None else self.documents.to(device))

    def split(self, sequences: int) -> list[Batch]:
        """The batch in parts of so many sequences."""
        tokens = self.tokens.split(sequences)
        documents = [None] * len(tokens) if self.documents is None else self.documents.split(sequences)
        return [Batch(*part) for part in zip(tokens, documents, strict=True)]
