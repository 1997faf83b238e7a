"""What a peer of a recipe needs, worked out from the recipe alone: memory, disk, traffic, and the time of a round.

Nothing is measured or asked for, and what is built has no values. Bytes of parameters, state and traffic are exact, or
bounds, as each says; activations and seconds are estimates, from constants that say where they come from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from prime_p2p.allreduce.codec import bits_of, wire_bytes
from prime_p2p.errors import BadInput
from prime_p2p.recipe import InnerRecipe, Recipe

if TYPE_CHECKING:
    import torch

    from prime_p2p.training.footprint import Size

FLOAT = 4
"""Bytes of a float32, in which parameters, gradients and state are."""

TRAINED = 2 * FLOAT
"""Bytes a parameter where the model is, beside those of the inner optimizer: itself and its gradient."""

STATE = 2 * FLOAT
"""Bytes a parameter of an outer state: anchor and momentum. As many are in a snapshot of one."""

VECTORS = 2
"""Vectors as they travel that a peer keeps in memory: its pseudo-gradient and the update."""

JOURNAL = 16
"""Updates that every peer keeps for others."""

SNAPSHOTS = 3
"""Outer states in files beside that: two that are given to others, or being fetched, and one to go back to while
updates are replayed."""

LINE_SHARE = 0.6
"""Share of a link's rate that an all-reduce gets: measured were 0.58 to 0.62 at 200 Mbit/s with a round trip of 100 ms,
the nearest to peers far apart, and 0.85 to 0.90 without one (docs/performance.md, "Slow links")."""

OUTER_SECONDS = 7.2e-9
"""Seconds a parameter that an outer step takes a peer alone, on one core: to quantise, to apply the update, to hash
(docs/performance.md, "Gathering, and a whole outer step")."""

_KEPT_OF_A_FEATURE = 4
"""Times that what goes into a matrix or comes out of it is kept, at most: a norm, or a function, keeps its own."""

WANTED_SHARE = 0.9
"""Share of the time in inner steps that ``minimum_bandwidth`` asks for."""


def moments(inner: InnerRecipe) -> float:
    """Bytes a parameter, at most, of what an inner optimizer keeps.

    AdamW has two moments; in 8 bits they have a scale for every 256. Muon has one for a hidden matrix and two for all
    else; SGD has one, or none without momentum.
    """
    if inner.optimizer == "sgd":
        return FLOAT if inner.momentum else 0
    return 2 * (1 + FLOAT / 256) if inner.optimizer == "adamw8bit" else 2 * FLOAT


@dataclass(frozen=True)
class Estimate:
    """What each of ``peers`` equal peers of a recipe needs. Bandwidths are in Mbit/s, the rest in bytes and seconds.

    ``gpu`` says whether it trains on a GPU, one that has bfloat16.
    """

    recipe: Recipe
    peers: int
    gpu: bool = True
    devices: int = 1
    """Of each peer, which share its model."""

    @cached_property
    def size(self) -> Size:
        """Of the model. Raises BadInput where transformers makes none of the recipe."""
        from prime_p2p.training.footprint import size_of  # slow to import

        return size_of(self.recipe.model)

    @property
    def parameters(self) -> int:
        """Those of the model that ``training/model.py`` builds, all of them trained."""
        return self.size.parameters

    # ---- memory and disk

    @property
    def model_bytes(self) -> int:
        """Parameters, gradients and moments, where the model is: on each GPU, or in host memory without one.

        Where GPUs share it, each has the layer at work as a whole beside that.
        """
        return round((TRAINED + moments(self.recipe.inner)) * self.parameters / self.devices)

    @property
    def at_a_time(self) -> int:
        """Sequences that go through the model at a time, on each device."""
        return min(self.recipe.inner.micro_batch, max(1, self.recipe.inner.batch_size // self.devices))

    def activation_bytes(self, sequences: int) -> int:
        """About what an inner step keeps of so many sequences at its peak, which is where the loss is.

        An attention that keeps scores (torch may choose such a one on a GPU where there are fewer keys than heads)
        takes more, compiled layers take less.
        """
        fixed, sequence = self._activations
        return fixed + sequence * sequences

    @property
    def training_bytes(self) -> int:
        """Where the model is, about: that and the activations of a micro-batch."""
        return self.model_bytes + self.activation_bytes(self.at_a_time)

    @property
    def training_bytes_at_most(self) -> int:
        """Not less than ``training_bytes`` but for scores that an attention keeps, and much faster to find."""
        tokens = self.at_a_time * self.recipe.model.context
        return self.model_bytes + _KEPT_OF_A_FEATURE * FLOAT * self.size.features * tokens

    def largest_batch(self, memory: float) -> int:
        """Sequences of a micro-batch that fit so many bytes, about; 0 where the model alone does not."""
        fixed, sequence = self._activations
        return max(0, math.floor((memory - self.model_bytes - fixed) / sequence))

    @cached_property
    def _activations(self) -> tuple[int, int]:
        """Bytes whatever the batch is, and bytes a sequence."""
        from prime_p2p.training.footprint import activation_bytes

        return activation_bytes(self.recipe.model, self.recipe.device, self.precision)

    @property
    def precision(self) -> torch.dtype:
        """In which products of matrices are made."""
        from prime_p2p.training.forward import precision_of

        return precision_of(self.recipe.device, has_bf16=self.gpu)

    @property
    def host_bytes(self) -> int:
        """In host memory, at most, beside the model where that is there too.

        Outer state, vectors, and a copy of the parameters, to save them in the middle of inner steps. What waits in a
        round to be added up is less than that.
        """
        return (STATE + FLOAT) * self.parameters + VECTORS * self.vector_bytes

    @property
    def resume_bytes(self) -> int:
        """In host memory, at most, for a moment: when a peer that has a GPU resumes from its checkpoint.

        One with several needs as much whenever it saves: what each has of the moments comes together there.
        """
        return self.checkpoint_bytes + VECTORS * self.vector_bytes

    @property
    def checkpoint_bytes(self) -> int:
        """Of a checkpoint: an outer state, the inner optimizer's, and the peer's own parameters.

        Those are left out of one that is saved right after an outer step, where they are the anchor.
        """
        return round((STATE + FLOAT + moments(self.recipe.inner)) * self.parameters)

    @property
    def disk_bytes(self) -> int:
        """In the peer's folder, at most: checkpoints and updates, with one more of each in the writing, snapshots."""
        kept = self.recipe.checkpoint
        checkpoints = (kept.keep + 1) * self.checkpoint_bytes
        journal = (max(JOURNAL, kept.every) + 1) * self.vector_bytes
        return checkpoints + journal + SNAPSHOTS * STATE * self.parameters

    # ---- a round

    @property
    def group(self) -> int:
        """Peers of a round: more than fit a group sit it out."""
        return min(self.peers, self.recipe.round.max_group)

    @property
    def vector_bytes(self) -> int:
        """A pseudo-gradient, or an update, as it travels."""
        return wire_bytes(self.parameters, bits_of(self.recipe.round.codec))

    @property
    def round_bytes(self) -> int:
        """Sent by each peer in a round, and received: every part but its own, and its own to all others."""
        return round(2 * (self.group - 1) / self.group * self.vector_bytes)

    def round_seconds(self, bandwidth: float) -> float:
        """About how long a round takes where each peer sends and receives at ``bandwidth``, with nobody to wait for."""
        return self.round_bytes * 8 / (LINE_SHARE * bandwidth * 1e6) + self._outer_seconds

    def inner_seconds(self, step_seconds: float) -> float:
        """The inner steps on the way to the first round, where one takes ``step_seconds``."""
        return self.recipe.round.inner_steps_at(0) * step_seconds

    def compute_share(self, step_seconds: float, bandwidth: float) -> float:
        """The share of the time in inner steps."""
        inner = self.inner_seconds(step_seconds)
        return inner / (inner + self.round_seconds(bandwidth))

    def bytes_per_hour(self, step_seconds: float, bandwidth: float = math.inf) -> float:
        """Sent by each peer in an hour, and received; without a ``bandwidth`` the most that can be."""
        return self.round_bytes * 3600 / (self.inner_seconds(step_seconds) + self.round_seconds(bandwidth))

    def minimum_bandwidth(self, step_seconds: float) -> float | None:
        """With which the inner steps have ``WANTED_SHARE`` of the time. None: what is no transfer takes too long."""
        round_seconds = self.inner_seconds(step_seconds) * (1 / WANTED_SHARE - 1)
        transfer_seconds = round_seconds - self._outer_seconds
        if transfer_seconds <= 0:
            return None
        return self.round_bytes * 8 / (LINE_SHARE * transfer_seconds * 1e6)

    @property
    def _outer_seconds(self) -> float:
        return OUTER_SECONDS * self.parameters


def check_memory(estimate: Estimate, free: float) -> None:
    """Raises BadInput, with what to change, where so many bytes are too few to train in.

    Where the model is in host memory, that is for what else a peer keeps there as well.
    """
    room = free - (0 if estimate.gpu else estimate.host_bytes)
    if estimate.training_bytes_at_most <= room or estimate.training_bytes <= room:
        return
    where = "the GPU" if estimate.gpu else "this machine"
    needed = f"{estimate.training_bytes / 1e9:.3g} GB"
    said = f"the recipe needs about {needed} of memory to train in, and {where} has {max(0.0, room) / 1e9:.3g} GB left"
    largest = estimate.largest_batch(room)
    if largest:
        sequences = estimate.recipe.inner.batch_size
        parts = next(
            parts for parts in range(1, sequences + 1) if sequences % parts == 0 and sequences // parts <= largest
        )
        advice = f"set inner.accumulation to {parts} or more"
    elif not estimate.recipe.device.checkpoint_activations and estimate.model_bytes < room:
        advice = "set device.checkpoint_activations to true"
    else:
        advice = "take a smaller model, or a larger machine"
    raise BadInput(f"{said}; {advice}")
