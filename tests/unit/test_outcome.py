from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from prime_p2p.errors import BadInput
from prime_p2p.outer.state import OuterState
from prime_p2p.recipe import Recipe
from prime_p2p.state.checkpoint import Checkpoint, LocalProgress
from prime_p2p.state.checkpoints import Checkpoints
from prime_p2p.training import model as models
from prime_p2p.training.data import Corpus, validation_sequences
from prime_p2p.training.evaluation import validation_loss
from prime_p2p.training.flat import FlatParameters
from prime_p2p.training.outcome import judge

RECIPE = """
[run]
name = "smallest"
[model]
hidden_size = 8
intermediate_size = 16
layers = 1
heads = 2
kv_heads = 1
context = 16
[inner]
learning_rate = 0.01
batch_size = 2
[round]
inner_steps = 2
[eval]
sequences = 8
[data]
validation_share = 0.5
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog; " * 40)
    return Recipe.load(tmp_path / "recipe.toml", [f"data.source={tmp_path / 'text.txt'}"])


@pytest.fixture
def trained(recipe: Recipe) -> LlamaForCausalLM:
    """A model that differs from the one the run begins with."""
    model = models.build(recipe.model, recipe.run.seed)
    flat = FlatParameters(model)
    flat.write(0, flat.to_numpy() * np.float32(0.5))
    return model


def save(model: LlamaForCausalLM, folder: Path) -> None:
    anchor = FlatParameters(model).to_numpy()
    local = LocalProgress(anchor.copy(), {}, position=4, tokens=0, rng_state=torch.get_rng_state())
    Checkpoints(folder).save(Checkpoint(OuterState.initial(anchor), local))


def test_the_final_anchor_is_judged_beside_the_initial_model_and_exported(
    recipe: Recipe, trained: LlamaForCausalLM, tmp_path: Path
) -> None:
    save(trained, tmp_path / "peer-2")
    start, end = judge(recipe, [tmp_path / "peer-1", tmp_path / "peer-2"], tmp_path / "model")

    text = Corpus.load(recipe.data).validation
    sequences = validation_sequences(text, recipe.run.seed, recipe.eval.sequences, recipe.model.context)
    assert start == validation_loss(models.build(recipe.model, recipe.run.seed), sequences)
    assert end == validation_loss(trained, sequences)
    assert start != end
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert np.array_equal(FlatParameters(exported).to_numpy(), FlatParameters(trained).to_numpy())


def test_without_any_checkpoint_there_is_nothing_to_judge(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no checkpoint in .*peer-1"):
        judge(recipe, [tmp_path / "peer-1"], tmp_path / "model")
    assert not (tmp_path / "model").exists()
