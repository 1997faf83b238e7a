"""The model in a peer's folder: the anchor of its newest checkpoint, with the recipe that is kept with it."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedModel

from prime_p2p.errors import BadInput
from prime_p2p.recipe import Recipe
from prime_p2p.state.checkpoint import Checkpoint
from prime_p2p.state.checkpoints import of_peer
from prime_p2p.training import model as models
from prime_p2p.training.data.tokenizer import KEPT, ByteTokenizer, Tokenizer, read
from prime_p2p.training.flat import FlatParameters


def newest_checkpoint(folder: Path) -> Checkpoint:
    """The newest whole checkpoint of the peer whose folder this is, which may be running.

    Raises:
        BadInput: there is none.
    """
    found = of_peer(folder).load_newest()
    if found is None:
        raise BadInput(f"{folder}: none of its checkpoints is whole")
    return found


def recipe_of(checkpoint: Checkpoint) -> Recipe:
    """What was trained, as far as all peers agree on it.

    Raises:
        BadInput: it was no recipe: the checkpoint is of somebody's own training loop.
    """
    return Recipe.from_shared(checkpoint.description)


def saved_model(checkpoint: Checkpoint) -> PreTrainedModel:
    """The model with the anchor as its parameters, ready to be evaluated."""
    recipe = recipe_of(checkpoint)
    model = models.build(recipe.model, recipe.run.seed, trained=True)
    FlatParameters(model).write(0, checkpoint.anchor)
    return model.eval()


def saved_tokenizer(folder: Path, checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer that the model of a peer's folder was trained with.

    Raises:
        BadInput: it is not in the folder, or another one is.
    """
    expected = recipe_of(checkpoint).data.tokenizer_hash
    if not expected:
        return ByteTokenizer()
    tokenizer = read(folder / KEPT)
    if tokenizer.hash != expected:
        raise BadInput(f"{folder / KEPT}: is not the tokenizer {expected} that the checkpoint was trained with")
    return tokenizer
