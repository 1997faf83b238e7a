"""Peers in one process: what a swarm does to their parameters, byte for byte, without the network between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import torch

from prime_p2p.allreduce.codec import BlockVector, bits_of
from prime_p2p.allreduce.mean import average
from prime_p2p.outer import nesterov
from prime_p2p.outer.nesterov import OuterOptimizer
from prime_p2p.outer.state import OuterState
from prime_p2p.recipe import Recipe
from prime_p2p.training.data import Sampler, Tokens
from prime_p2p.training.flat import FlatParameters
from prime_p2p.training.pseudo_gradient import PseudoGradient, UnfitPseudoGradient
from prime_p2p.training.trainer import Trainer

Missed = Literal["carried", "still", "dropped"]


class Diverged(Exception):
    """Training with this setting leads nowhere."""


class Member:
    """One peer: its model and inner optimizer, its own batches, and what it has trained since it last gave it away."""

    def __init__(self, name: str, recipe: Recipe, text: Tokens) -> None:
        self.name = name
        self.tokens = 0
        self.steps = 0
        self.trainer = Trainer(recipe, torch.device("cpu"))
        self.parameters = FlatParameters(self.trainer.model)
        self._recipe = recipe
        self._sampler = Sampler(text, recipe.run.seed, name, recipe.inner.batch_size, recipe.model.context)
        self._batches = 0

    def train(self, first: int, steps: int) -> None:
        """Make inner steps, the first of them the run's ``first``-th. Raises Diverged."""
        for step in range(first, first + steps):
            batch = self._sampler.batch(self._batches)
            self._batches += 1
            self.steps += 1
            self.tokens += batch.targets
            if not math.isfinite(self.trainer.step(batch, self._recipe.inner, step)):
                raise Diverged(f"the loss of {self.name} is not finite at inner step {step}")


class Codec(Protocol):
    """How pseudo-gradients reach the others."""

    def apply(self, state: OuterState, members: Sequence[Member], optimizer: OuterOptimizer) -> None:
        """One outer step with the mean of these members' pseudo-gradients, weighted by tokens. Raises Diverged."""

    def sent(self, peers: int) -> int:
        """Bytes that each peer of so many uploads."""


class Blocks:
    """As in a swarm: quantised, added up by the owner of a part, quantised again."""

    def __init__(self, n: int, codec: str, explosion_factor: float) -> None:
        self._bits = bits_of(codec)
        self._factor = explosion_factor
        self._update = BlockVector.empty(n, self._bits)
        self._of: dict[Member, PseudoGradient] = {}

    def apply(self, state: OuterState, members: Sequence[Member], optimizer: OuterOptimizer) -> None:
        taken = []
        for member in members:
            mine = self._of.setdefault(member, PseudoGradient(member.parameters, self._factor, self._bits))
            try:
                mine.take(state.anchor, member.steps)
            except UnfitPseudoGradient as reason:
                raise Diverged(f"the pseudo-gradient of {member.name}: {reason}") from None
            mine.contributed()
            taken.append(mine.blocks)
        tokens = sum(member.tokens for member in members)
        average(taken, [member.tokens / tokens for member in members], self._update)
        state.apply(self._update, tokens, optimizer)

    def sent(self, peers: int) -> int:
        return round(2 * (peers - 1) / peers * self._update.nbytes)


class Floats:
    """What is lost by quantising is seen beside this one: every pseudo-gradient and their mean as float32."""

    def __init__(self, n: int) -> None:
        self._n = n

    def apply(self, state: OuterState, members: Sequence[Member], optimizer: OuterOptimizer) -> None:
        tokens = sum(member.tokens for member in members)
        mean = np.zeros(self._n, np.float32)
        for member in members:
            mean += np.float32(member.tokens / tokens) * (state.anchor - member.parameters.to_numpy())
        if not np.isfinite(mean).all():
            raise Diverged("the mean of the pseudo-gradients is not finite")
        nesterov.move(state.anchor, state.momentum, mean, optimizer, np.empty_like(mean))

    def sent(self, peers: int) -> int:
        return round(2 * (peers - 1) / peers * 4 * self._n)


class Group:
    """The peers of a run and the outer state they share."""

    def __init__(self, recipe: Recipe, names: Sequence[str], text: Tokens, codec: str) -> None:
        self._recipe = recipe
        self._text = text
        self.members = [Member(name, recipe, text) for name in names]
        parameters = self.members[0].parameters
        self.state = OuterState.initial(parameters.to_numpy())
        self.codec: Codec = (
            Floats(parameters.n) if codec == "fp32" else Blocks(parameters.n, codec, recipe.round.explosion_factor)
        )
        self._optimizer = OuterOptimizer(recipe.outer.learning_rate, recipe.outer.momentum)

    def leave(self, name: str) -> None:
        """A peer is gone, with what it has trained since its last exchange."""
        self.members = [member for member in self.members if member.name != name]

    def join(self, name: str) -> None:
        """Another peer begins, from the state of the others and with an inner optimizer that has seen nothing."""
        member = Member(name, self._recipe, self._text)
        member.parameters.write(0, self.state.anchor)
        self.members.append(member)

    def train(self, first: int, steps: int) -> None:
        """Inner steps of every member."""
        for member in self.members:
            member.train(first, steps)

    def exchange(self, present: Sequence[Member], missed: Missed = "carried") -> None:
        """An outer step with those who are present. What the others have trained is afterwards on top of the new anchor
        (``carried``, as in a swarm), or dropped, or else their parameters have stood ``still``."""
        if not present:
            return
        absent = [member for member in self.members if member not in present]
        if missed == "carried":
            for member in absent:
                member.parameters.add(self.state.anchor, -1.0)
        self.codec.apply(self.state, present, self._optimizer)
        if missed == "carried":
            for member in absent:
                member.parameters.add(self.state.anchor, 1.0)
        for member in [*present, *(absent if missed == "dropped" else ())]:
            member.parameters.write(0, self.state.anchor)
            member.tokens = member.steps = 0
