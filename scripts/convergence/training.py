"""One run of the study, from its setting to its losses."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from prime_p2p.allreduce.codec import Float32
from prime_p2p.recipe import Recipe
from prime_p2p.training import model as models
from prime_p2p.training.batch import Batch
from prime_p2p.training.data import Corpus, Sampler, validation_sequences
from prime_p2p.training.data.corpus import Places
from prime_p2p.training.evaluation import validation_loss
from prime_p2p.training.flat import FlatParameters
from prime_p2p.training.trainer import Trainer
from scripts.convergence.arms import SEQUENCES, Arm, Setting
from scripts.convergence.group import Diverged, Floats, Group, Member, Missed
from scripts.convergence.results import Outcome

SEQUENCES_ON_THE_WAY = 256
LOOKS = 12  # on the way
MISSED: dict[str, Missed] = {"lossy-still": "still", "lossy-dropped": "dropped"}


class Snapshot(NamedTuple):
    """Where a run is: inner steps made, flat parameters, bytes that one peer has uploaded."""

    steps: int
    parameters: Float32
    sent: int


def run(setting: Setting, texts: Path = Path()) -> Outcome:
    """Train as the setting says; a text that its recipe names by a relative path is in ``texts``.

    The same setting gives the same losses, whatever ran before it.
    """
    torch.set_num_threads(1)
    began = time.process_time()
    recipe = setting.recipe()
    text = Corpus.load(recipe.data, Places(texts))
    judge = Judge(recipe, text)
    curve: list[tuple[int, float]] = []
    loss, sent, note = math.nan, 0, ""
    train = _diloco if setting.arm.method == "diloco" else _plain
    try:
        for now in train(setting, recipe, text):
            sent = now.sent
            curve.append((now.steps, judge.loss(now.parameters, SEQUENCES_ON_THE_WAY)))
            if now.steps == setting.arm.steps:
                loss = judge.loss(now.parameters, SEQUENCES)
    except Diverged as reason:
        note = str(reason)
    return Outcome(loss if math.isfinite(loss) else math.inf, tuple(curve), sent, time.process_time() - began, note)


class Judge:
    """Evaluates flat parameters on fixed validation sequences."""

    def __init__(self, recipe: Recipe, text: Corpus) -> None:
        self._model = models.build(recipe.model, seed=0)
        self._parameters = FlatParameters(self._model)
        self._text = text.validation
        self._context = recipe.model.context

    def loss(self, parameters: Float32, sequences: int) -> float:
        self._parameters.write(0, parameters)
        return validation_loss(self._model, validation_sequences(self._text, 0, sequences, self._context))


def _plain(setting: Setting, recipe: Recipe, text: Corpus) -> Iterator[Snapshot]:
    """One model; data-parallel training of it is on the batches of all peers at once, with float32 gradients."""
    arm = setting.arm
    size, context = recipe.inner.batch_size, recipe.model.context
    samplers = [
        Sampler(text.train, recipe.run.seed, f"peer-{number}", size, context) for number in range(1, arm.peers + 1)
    ]
    inner = recipe.inner.model_copy(update={"batch_size": size * arm.peers})
    trainer = Trainer(recipe, torch.device("cpu"))
    parameters = FlatParameters(trainer.model)
    for step in range(arm.steps):
        batch = Batch(torch.cat([sampler.batch(step).tokens for sampler in samplers]))
        if not math.isfinite(trainer.step(batch, inner, step)):
            raise Diverged(f"the loss is not finite at step {step}")
        if _is_looked_at(arm, step + 1):
            yield Snapshot(step + 1, parameters.to_numpy(), (step + 1) * Floats(parameters.n).sent(arm.peers))


def _diloco(setting: Setting, recipe: Recipe, text: Corpus) -> Iterator[Snapshot]:
    arm = setting.arm
    names = [f"peer-{number}" for number in range(1, arm.peers + 1)]
    group = Group(recipe, names, text.train, arm.codec)
    rounds = arm.steps // arm.inner_steps
    sent = 0
    chances = random.Random(f"lost exchanges {setting.seed}")
    for number in range(rounds):
        if arm.membership == "elastic" and number == rounds // 3:
            group.leave(names[-1])
        if arm.membership == "elastic" and number == rounds * 2 // 3:
            group.join(f"peer-{arm.peers + 1}")
        group.train(number * arm.inner_steps, arm.inner_steps)
        present = _present(arm, group, chances)
        group.exchange(present, MISSED.get(arm.membership, "carried"))
        if group.members[0] in present:
            sent += group.codec.sent(len(present))
        steps = (number + 1) * arm.inner_steps
        if _is_looked_at(arm, steps):
            yield Snapshot(steps, group.state.anchor, sent)


def _is_looked_at(arm: Arm, steps: int) -> bool:
    return steps % (arm.steps // LOOKS) == 0 or steps == arm.steps


def _present(arm: Arm, group: Group, chances: random.Random) -> list[Member]:
    lossy = arm.membership.startswith("lossy")
    return [member for member in group.members if not (lossy and chances.random() < 0.5)]
