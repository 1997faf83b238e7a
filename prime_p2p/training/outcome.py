"""What a run was good for: its final model as a folder, and the validation loss before and after."""

from collections.abc import Sequence
from pathlib import Path

from transformers.utils import logging

from prime_p2p.allreduce.codec import Float32
from prime_p2p.errors import BadInput
from prime_p2p.recipe import Recipe
from prime_p2p.state.checkpoints import Checkpoints
from prime_p2p.training import model as models
from prime_p2p.training.data.corpus import CACHE, Corpus, Places
from prime_p2p.training.data.sampling import validation_sequences
from prime_p2p.training.data.tokenizer import tokenizer_of
from prime_p2p.training.evaluation import validation_loss
from prime_p2p.training.export import export
from prime_p2p.training.flat import FlatParameters


def judge(recipe: Recipe, folders: Sequence[Path], model_folder: Path) -> tuple[float, float]:
    """Export the final model to ``model_folder``, and say how much better it is than the one the run began with.

    The model is the anchor of the newest checkpoint in the first of ``folders`` that holds one, each of which is in the
    folder of a peer.

    Returns:
        Validation loss of the initial and of the final model, in nats per token.

    Raises:
        BadInput: No folder holds a checkpoint, or the model folder cannot be written.
    """
    logging.disable_progress_bar()  # of transformers, which would write across whatever the caller shows
    model = models.build(recipe.model, recipe.run.seed)
    tokenizer = tokenizer_of(recipe.data, Path())
    text = Corpus.load(recipe.data, Places(cache=folders[0].parent / CACHE), tokenizer)
    sequences = validation_sequences(text.validation, recipe.run.seed, recipe.eval.sequences, recipe.model.context)
    start = validation_loss(model, sequences)
    FlatParameters(model).write(0, _newest_anchor(folders))
    export(model, model_folder, tokenizer)
    return start, validation_loss(model, sequences)


def _newest_anchor(folders: Sequence[Path]) -> Float32:
    for folder in folders:
        checkpoint = Checkpoints(folder).load_newest()
        if checkpoint is not None:
            return checkpoint.anchor
    raise BadInput(f"no checkpoint in {', '.join(str(folder) for folder in folders)}")
