"""Batches out of a text, that nobody has to hand out: each peer draws at random, or all share each epoch out.

Both are random access: the same position gives the same batch in any process and in any order, so resuming needs no
sampler state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from blake3 import blake3

from prime_p2p.errors import BadInput
from prime_p2p.training.batch import Batch
from prime_p2p.training.data.assignment import Assignment, Place
from prime_p2p.training.data.tokenised import Ends
from prime_p2p.training.data.tokenizer import Tokens


class Order(Protocol):
    """Which batches a peer reads. Positions count sequences, in a stream whose epochs have ``sequences`` (0: none)."""

    batch_size: int
    sequences: int

    def position(self, place: Place, drawn: int) -> int:
        """Where the next batch is, of a peer at ``place`` that has drawn so many batches since it first began."""
        ...

    def at(self, position: int) -> Batch:
        """The batch that begins there."""
        ...


@dataclass(frozen=True)
class Windows:
    """Sequences of ``context + 1`` tokens of a text. With ``ends``, of its documents, batches tell them apart."""

    tokens: Tokens
    context: int
    ends: Ends | None = None

    def at(self, starts: npt.NDArray[np.int64]) -> Batch:
        """The batch of the sequences that begin at these tokens."""
        places = starts[:, None] + np.arange(self.context + 1)
        tokens = torch.from_numpy(self.tokens[places].astype(np.int64))
        return Batch(tokens, None if self.ends is None else torch.from_numpy(_documents(self.ends, places)))


class Sampler:
    """Windows at random places: each peer's own endless stream, which knows nothing of the others'. With ``ends``, of
    the documents, the batches say which of them a token is of."""

    def __init__(
        self, tokens: Tokens, seed: int, peer_id: str, batch_size: int, context: int, ends: Ends | None = None
    ) -> None:
        _require_length(tokens, context, "training")
        self.batch_size = batch_size
        self.sequences = 0
        self._places = np.uint64(len(tokens) - context)
        self._windows = Windows(tokens, context, ends)
        self._key = _key("train", seed, peer_id)

    def batch(self, step: int) -> Batch:
        """The batch of one inner step."""
        random = np.random.Philox(key=self._key, counter=np.array([0, step, 0, 0], dtype=np.uint64))
        return self._windows.at((random.random_raw(self.batch_size) % self._places).astype(np.int64))

    def position(self, place: Place, drawn: int) -> int:
        return drawn * self.batch_size

    def at(self, position: int) -> Batch:
        return self.batch(position // self.batch_size)


class SharedOrder:
    """Windows one after the other, shuffled in each epoch and shared out among peers (see ``assignment``)."""

    def __init__(self, windows: Windows, seed: int, peer_id: str, batch_size: int) -> None:
        _require_length(windows.tokens, windows.context, "training")
        self.batch_size = batch_size
        self.sequences = (len(windows.tokens) - 1) // windows.context
        self._windows = windows
        self._assignment = Assignment(seed, peer_id, self.sequences)

    def position(self, place: Place, drawn: int) -> int:
        return self._assignment.position(place)

    def at(self, position: int) -> Batch:
        numbers = self._assignment.indices(np.arange(position, position + self.batch_size))
        return self._windows.at(numbers * self._windows.context)


def validation_sequences(tokens: Tokens, seed: int, sequences: int, context: int) -> torch.Tensor:
    """What every peer of a run evaluates on: int64 [n, context + 1], the same for one seed and one text.

    The windows do not overlap, so n is less than `sequences` when the text is too short for as many.
    """
    _require_length(tokens, context, "validation")
    places = (len(tokens) - 1) // context
    order = np.argsort(np.random.Philox(key=_key("validation", seed)).random_raw(places), kind="stable")
    return Windows(tokens, context).at(np.sort(order[:sequences]) * context).tokens


def _documents(ends: Ends, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The number of the document, counted from the first one in each sequence, that each place is in."""
    numbers = np.searchsorted(ends, places, side="right")
    return (numbers - numbers[:, :1]).astype(np.int64)


def _require_length(tokens: Tokens, context: int, purpose: str) -> None:
    if len(tokens) <= context:
        raise BadInput(
            f"data.source: only {len(tokens)} tokens of {purpose} text; model.context = {context} needs {context + 1}"
        )


def _key(*parts: object) -> npt.NDArray[np.uint64]:
    """The 128-bit Philox key that belongs to a purpose, a seed and perhaps a peer."""
    return np.frombuffer(blake3(repr(parts).encode()).digest(16), dtype="<u8").astype(np.uint64)
