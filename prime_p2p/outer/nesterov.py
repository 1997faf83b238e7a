"""The outer optimizer: SGD with Nesterov momentum, as exact, repeatable arithmetic on the CPU.

DiLoCo (Douillard et al., https://arxiv.org/abs/2311.08105) applies the averaged pseudo-gradient with it. The formulas
are those of torch.optim.SGD with dampening 0 and weight decay 0. Every multiply and every add is rounded by itself, so
that all peers hold the same bytes, whatever their processor, their number of threads, or how the vector is cut.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prime_p2p.allreduce.codec import BLOCK, CHUNK, BlockVector, Float32, dequantise
from prime_p2p.kernels import compiled
from prime_p2p.outer.parallel import in_threads


@dataclass(frozen=True)
class OuterOptimizer:
    """Hyperparameters of the outer step; all peers of a run use the same ones."""

    learning_rate: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True


SPAN = 16 * CHUNK
"""Elements that one thread takes at a time."""


def step(anchor: Float32, momentum: Float32, update: BlockVector, optimizer: OuterOptimizer, threads: int = 1) -> None:
    """Apply the update g (n elements) to ``anchor`` and ``momentum`` (shape [n], contiguous) in place.

    m = mu * m + g, then anchor -= lr * (g + mu * m), or anchor -= lr * m without Nesterov. A run starts with m = 0.
    Raises ValueError, with nothing changed, when the three are not of the same length.
    """
    if not len(anchor) == len(momentum) == update.n:
        raise ValueError(f"an update of {update.n} elements for an anchor of {len(anchor)}, momentum {len(momentum)}")

    def work(start: int) -> None:
        stop = min(start + SPAN, update.n)
        _step_span(anchor[start:stop], momentum[start:stop], update.slice(start // BLOCK, -(-stop // BLOCK)), optimizer)

    in_threads(work, range(0, update.n, SPAN), threads)


def move(anchor: Float32, momentum: Float32, gradient: Float32, optimizer: OuterOptimizer, scratch: Float32) -> None:
    """The same step with an update in float32 (all of shape [n], ``scratch`` too, which is overwritten)."""
    rate, decay = np.float32(optimizer.learning_rate), np.float32(optimizer.momentum)
    momentum *= decay
    momentum += gradient
    if optimizer.nesterov:
        np.multiply(momentum, decay, out=scratch)
        scratch += gradient
        scratch *= rate
    else:
        np.multiply(momentum, rate, out=scratch)
    anchor -= scratch


def _step_span(anchor: Float32, momentum: Float32, update: BlockVector, optimizer: OuterOptimizer) -> None:
    if compiled.KERNELS is not None:
        numbers = optimizer.learning_rate, optimizer.momentum, optimizer.nesterov
        compiled.KERNELS.outer_step(update.arrays, update.bits, numbers, momentum, anchor)
        return
    gradients, moves = np.empty((2, min(CHUNK, update.n)), np.float32)
    for start in range(0, update.n, CHUNK):
        stop = min(start + CHUNK, update.n)
        gradient = gradients[: stop - start]
        dequantise(update.slice(start // BLOCK, -(-stop // BLOCK)), gradient)
        move(anchor[start:stop], momentum[start:stop], gradient, optimizer, moves[: stop - start])
