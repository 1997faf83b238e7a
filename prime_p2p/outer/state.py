"""The outer state: what all peers of a lineage hold, byte for byte."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType

import numpy as np

from prime_p2p.allreduce.codec import BlockVector, Float32
from prime_p2p.outer import nesterov
from prime_p2p.outer.digest import digest_of_pieces, pieces
from prime_p2p.outer.nesterov import OuterOptimizer

HOLD_DEADLINE = 10.0  # seconds that an outer step waits for those who hold the state as it is


class OuterState:
    """Anchor and momentum (float32, shape [n]) after ``step`` outer steps to which ``tokens`` tokens were contributed.

    ``digest`` names the state, ``pieces`` are the hashes it is made of. ``apply`` holds ``lock`` while the arrays
    change; whoever else reads them while that can happen holds it too, and nobody waits for the network with it. Who
    reads for longer takes a ``hold`` instead.
    """

    digest: bytes
    pieces: list[bytes]

    def __init__(
        self,
        anchor: Float32,
        momentum: Float32,
        step: int,
        tokens: int,
        threads: int = 1,
        hashes: Sequence[bytes] | None = None,
    ) -> None:
        """Takes the arrays over, without a copy; ``threads`` is how many the arithmetic and the hashing may use.

        ``hashes`` are those of the pieces, where they are known.
        """
        self.anchor = anchor
        self.momentum = momentum
        self.step = step
        self.tokens = tokens
        self.lock = threading.Lock()
        self._holds: set[Hold] = set()
        self._released = threading.Condition(self.lock)
        self._threads = threads
        self._name(hashes)

    @classmethod
    def initial(cls, anchor: Float32, threads: int = 1) -> OuterState:
        """The state before the first outer step, from a copy of the initial parameters."""
        return cls(np.array(anchor, np.float32), np.zeros(len(anchor), np.float32), step=0, tokens=0, threads=threads)

    def apply(self, update: BlockVector, tokens: int, optimizer: OuterOptimizer) -> bytes:
        """Make one outer step with an update to which ``tokens`` tokens were contributed; returns the new digest.

        Takes the lock. Raises ValueError, with nothing changed, for an update of another length.
        """
        with self.lock:
            self._wait_for_holds()
            nesterov.step(self.anchor, self.momentum, update, optimizer, self._threads)
            self.step += 1
            self.tokens += tokens
            self._name()
            return self.digest

    def put_back(self, step: int, tokens: int, fill: Callable[[Float32, Float32], None]) -> None:
        """Become an earlier state, whose anchor and momentum ``fill`` writes into the arrays. Takes the lock."""
        with self.lock:
            self._wait_for_holds()
            fill(self.anchor, self.momentum)
            self.step = step
            self.tokens = tokens
            self._name()

    def end(self) -> None:
        """The arrays are about to be used for something else: who reads them piece by piece finds no state here."""
        with self.lock:
            self._wait_for_holds()
            self.digest = b""

    def hold(self) -> Hold:
        """Keep the state as it is, until the hold is released or broken. Takes the lock."""
        hold = Hold(self)
        with self.lock:
            self._holds.add(hold)
        return hold

    def release(self, hold: Hold) -> None:
        """Let go of a hold; no matter if that was done before."""
        with self.lock:
            self._holds.discard(hold)
            self._released.notify_all()

    def _wait_for_holds(self) -> None:
        """Wait until the arrays may change; they may after some time, whoever still reads them."""
        self._released.wait_for(lambda: not self._holds, HOLD_DEADLINE)
        for hold in self._holds:
            hold.broken = True
        self._holds.clear()

    def _name(self, hashes: Sequence[bytes] | None = None) -> None:
        self.pieces = list(hashes or pieces(self.anchor, self.momentum, self._threads))
        self.digest = digest_of_pieces(self.step, self.tokens, len(self.anchor), self.pieces)


class Hold:
    """While this is held (a context) the state does not change. ``broken`` is set before it does all the same: then
    what was read meanwhile may be of two states."""

    def __init__(self, state: OuterState) -> None:
        self.broken = False
        self._state = state

    def release(self) -> None:
        self._state.release(self)

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
