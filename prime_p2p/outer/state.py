"""The outer state: what all peers of a lineage hold, byte for byte."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from prime_p2p.allreduce.codec import BlockVector, Float32
from prime_p2p.outer import nesterov
from prime_p2p.outer.digest import digest_of_pieces, pieces
from prime_p2p.outer.nesterov import OuterOptimizer


class OuterState:
    """Anchor and momentum (float32, shape [n]) after ``step`` outer steps to which ``tokens`` tokens were contributed.

    ``digest`` names the state, ``pieces`` are the hashes it is made of. ``apply`` holds ``lock`` while the arrays
    change; whoever else reads them while that can happen holds it too, and nobody waits for the network with it.
    """

    def __init__(self, anchor: Float32, momentum: Float32, step: int, tokens: int, threads: int = 1) -> None:
        """Takes the arrays over, without a copy; ``threads`` is how many the arithmetic and the hashing may use."""
        self.anchor = anchor
        self.momentum = momentum
        self.step = step
        self.tokens = tokens
        self.lock = threading.Lock()
        self._threads = threads
        self._name()

    @classmethod
    def initial(cls, anchor: Float32, threads: int = 1) -> OuterState:
        """The state before the first outer step, from a copy of the initial parameters."""
        return cls(np.array(anchor, np.float32), np.zeros(len(anchor), np.float32), step=0, tokens=0, threads=threads)

    def apply(self, update: BlockVector, tokens: int, optimizer: OuterOptimizer) -> bytes:
        """Make one outer step with an update to which ``tokens`` tokens were contributed; returns the new digest.

        Takes the lock. Raises ValueError, with nothing changed, for an update of another length.
        """
        with self.lock:
            nesterov.step(self.anchor, self.momentum, update, optimizer, self._threads)
            self.step += 1
            self.tokens += tokens
            self._name()
            return self.digest

    def put_back(self, step: int, tokens: int, fill: Callable[[Float32, Float32], None]) -> None:
        """Become an earlier state, whose anchor and momentum ``fill`` writes into the arrays. Takes the lock."""
        with self.lock:
            fill(self.anchor, self.momentum)
            self.step = step
            self.tokens = tokens
            self._name()

    def _name(self) -> None:
        self.pieces: list[bytes] = pieces(self.anchor, self.momentum, self._threads)
        self.digest: bytes = digest_of_pieces(self.step, self.tokens, len(self.anchor), self.pieces)
