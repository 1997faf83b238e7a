"""What a peer of a recipe needs, worked out from the recipe alone: memory, disk, traffic, and the time of a round.

Nothing is built, measured or asked for. Bytes of parameters, state and traffic are exact, or bounds, as each says;
activations and seconds are estimates, from constants that say where they come from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from prime_p2p.allreduce.codec import bits_of, wire_bytes
from prime_p2p.recipe import InnerRecipe, Recipe

FLOAT = 4
"""Bytes of a float32, in which parameters, gradients and activations are."""

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
    """What each of ``peers`` equal peers of a recipe needs. Bandwidths are in Mbit/s, the rest in bytes and seconds."""

    recipe: Recipe
    peers: int

    @property
    def parameters(self) -> int:
        """Those of the model that ``training/model.py`` builds, all of them trained."""
        shape = self.recipe.model
        width = shape.hidden_size
        attention = 2 * width * (width + self._keys)
        feed_forward = 3 * width * shape.intermediate_size
        norms = 2 * width
        embedding_and_head = 2 * shape.vocab_size * width
        return embedding_and_head + shape.layers * (attention + feed_forward + norms) + width

    # ---- memory and disk

    @property
    def model_bytes(self) -> int:
        """Parameters, gradients and moments, where the model is: on the GPU, or in host memory without one."""
        return round((TRAINED + moments(self.recipe.inner)) * self.parameters)

    def activation_bytes(self, sequences: int) -> int:
        """About what an inner step keeps of so many sequences at its peak, which is where the loss is.

        For each token a layer keeps 8 vectors of its width (3 for each norm, queries, attention), keys and values, and
        4 as wide as its middle; the loss takes 3 as wide as the vocabulary. An attention that keeps scores (torch may
        choose such a one on a GPU where there are fewer keys than heads) takes more.
        """
        shape = self.recipe.model
        layer = 8 * shape.hidden_size + 2 * self._keys + 4 * shape.intermediate_size
        token = shape.layers * layer + 3 * shape.hidden_size + 3 * shape.vocab_size
        return FLOAT * token * shape.context * sequences

    @property
    def gpu_bytes(self) -> int:
        """Of the one GPU of a peer, about: the model and the activations of a micro-batch."""
        return self.model_bytes + self.activation_bytes(self.recipe.inner.micro_batch)

    def largest_batch(self, gpu_bytes: float) -> int:
        """Sequences of a micro-batch that fit a GPU, about; 0 where the model alone does not."""
        return max(0, math.floor((gpu_bytes - self.model_bytes) / self.activation_bytes(1)))

    @property
    def host_bytes(self) -> int:
        """In host memory, at most, beside the model where that is there too.

        Outer state, vectors, and a copy of the parameters, to save them in the middle of inner steps. What waits in a
        round to be added up is less than that.
        """
        return (STATE + FLOAT) * self.parameters + VECTORS * self.vector_bytes

    @property
    def resume_bytes(self) -> int:
        """In host memory, at most, for a moment: when a peer that has a GPU resumes from its checkpoint."""
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
    def _keys(self) -> int:
        """Width of the keys, and of the values."""
        return self.recipe.model.hidden_size // self.recipe.model.heads * self.recipe.model.kv_heads

    @property
    def _outer_seconds(self) -> float:
        return OUTER_SECONDS * self.parameters
