"""Folders as a peer leaves them: checkpoints and a journal, of outer steps made from updates of no meaning."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from prime_p2p.allreduce.codec import BITS, BlockVector, quantise
from prime_p2p.outer.journal import Journal, JournalEntry
from prime_p2p.outer.state import OuterState
from prime_p2p.recipe import Recipe
from prime_p2p.state.checkpoint import Checkpoint, LocalProgress
from prime_p2p.state.checkpoints import Checkpoints
from prime_p2p.terms import Terms
from prime_p2p.training import model as models
from prime_p2p.training.flat import FlatParameters

SMALL = (
    "model.hidden_size=16",
    "model.intermediate_size=32",
    "model.layers=1",
    "model.heads=2",
    "model.kv_heads=2",
    "model.context=16",
)


def small_recipe(*overrides: str) -> Recipe:
    return Recipe.load(Path(__file__).parents[2] / "peers" / "tiny.toml", [*SMALL, *overrides])


@dataclass(frozen=True)
class Made:
    """A folder and the digests of its outer steps, from that of step 0 on."""

    folder: Path
    digests: list[bytes]
    anchor: np.ndarray


def make(folder: Path, outer_steps: int, saved: Collection[int], seed: int = 1, overrides: Sequence[str] = ()) -> Made:
    """Make so many outer steps, with checkpoints at those that are ``saved``."""
    recipe = small_recipe(*overrides)
    terms = Terms(recipe)
    state = OuterState.initial(FlatParameters(models.build(recipe.model, recipe.run.seed)).to_numpy())
    checkpoints, journal = Checkpoints(folder / "checkpoints", keep=100), Journal(folder / "journal", 100)
    digests = [state.digest]
    noise = np.random.default_rng(seed)
    for step in range(1, outer_steps + 1):
        update = BlockVector.empty(len(state.anchor), BITS[recipe.round.codec])
        quantise(noise.normal(0, 0.01, len(state.anchor)).astype(np.float32), update)
        after = state.apply(update, 100, terms.outer_at(step - 1))
        entry = JournalEntry(step - 1, digests[-1], after, 100, len(state.anchor), update.bits)
        journal.append(entry, update)
        digests.append(after)
        if step in saved:
            local = LocalProgress(state.anchor, {}, 0, 0, torch.get_rng_state())
            checkpoints.save(Checkpoint(state, local, recipe.run.name, recipe.shared()))
    return Made(folder, digests, state.anchor)
