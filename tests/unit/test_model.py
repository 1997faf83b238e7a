import math

import numpy as np
import pytest
import torch
from blake3 import blake3

from prime_p2p.recipe import InnerRecipe, ModelRecipe
from prime_p2p.training import evaluation, model, optimizer
from prime_p2p.training.batch import Batch

RECIPE = ModelRecipe(hidden_size=16, intermediate_size=24, layers=2, heads=2, kv_heads=1, context=8)
TOKENS = torch.from_numpy(np.arange(36).reshape(4, 9) * 7 % 256)


def digest(built: torch.nn.Module) -> str:
    """A name for all parameters of a model, in order."""
    flat = torch.cat([parameter.detach().flatten() for parameter in built.parameters()])
    return blake3(flat.numpy().tobytes()).hexdigest()


def test_a_model_has_the_shape_of_its_recipe() -> None:
    built = model.build(RECIPE, seed=0)
    assert built.config.max_position_embeddings == 8
    assert built(input_ids=TOKENS).logits.shape == (4, 9, 256)
    assert {parameter.dtype for parameter in built.parameters()} == {torch.float32}
    assert built.model.layers[1].mlp.up_proj.weight.shape == (24, 16)
    assert built.model.layers[1].self_attn.k_proj.weight.shape == (8, 16)


def test_a_model_is_the_same_bytes_in_every_process_and_on_every_machine() -> None:
    assert digest(model.build(RECIPE, seed=3)) == "e4f7b2e05f0e0c51f36fd810531dd522d36cd1f4e81e6624dc91807ef55ec79c"


def test_every_seed_builds_another_model() -> None:
    assert len({digest(model.build(RECIPE, seed)) for seed in range(5)}) == 5


def test_building_a_model_leaves_the_global_generators_alone() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    expected = torch.rand(3), np.random.rand(3)
    torch.manual_seed(0)
    np.random.seed(0)
    model.build(RECIPE, seed=1)
    assert torch.equal(torch.rand(3), expected[0])
    assert np.array_equal(np.random.rand(3), expected[1])


def test_an_untrained_model_knows_nothing() -> None:
    recipe = RECIPE.model_copy(update={"hidden_size": 64, "intermediate_size": 128})
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (64, 9)))
    assert evaluation.validation_loss(model.build(recipe, seed=0), tokens) == pytest.approx(math.log(256), rel=0.02)


def test_the_loss_is_the_mean_surprise_over_the_next_tokens() -> None:
    built = model.build(RECIPE, seed=0)
    odds = built(input_ids=TOKENS[:, :-1]).logits.softmax(-1).detach()
    surprises = [-math.log(odds[i, j, TOKENS[i, j + 1]]) for i in range(4) for j in range(8)]
    assert model.loss(built, Batch(TOKENS)).item() == pytest.approx(sum(surprises) / len(surprises), rel=1e-5)


def test_a_model_sees_no_later_token() -> None:
    built = model.build(RECIPE, seed=0)
    changed = TOKENS.clone()
    changed[:, 5:] = 1
    before, after = built(input_ids=TOKENS).logits, built(input_ids=changed).logits
    assert torch.allclose(before[:, :5], after[:, :5], atol=1e-6)
    assert not torch.allclose(before[:, 5:], after[:, 5:], atol=1e-6)


def test_the_validation_loss_does_not_depend_on_how_sequences_are_batched() -> None:
    built = model.build(RECIPE, seed=0)
    losses = [evaluation.validation_loss(built, TOKENS, batch_size) for batch_size in (1, 3, 4, 100)]
    assert losses == pytest.approx([model.loss(built, Batch(TOKENS)).item()] * 4, rel=1e-5)


def test_evaluation_changes_neither_the_model_nor_its_mode() -> None:
    built = model.build(RECIPE, seed=0)
    before = digest(built)
    for training in (True, False):
        built.train(training)
        evaluation.validation_loss(built, TOKENS)
        assert built.training is training
    assert digest(built) == before
    assert all(parameter.grad is None for parameter in built.parameters())


def test_a_model_learns_what_it_is_shown() -> None:
    built = model.build(RECIPE, seed=0)
    inner = InnerRecipe(learning_rate=0.01, batch_size=4)
    adamw = optimizer.build(inner, built)
    for step in range(60):
        model.loss(built, Batch(TOKENS)).backward()
        optimizer.step(adamw, inner, step)
    assert model.loss(built, Batch(TOKENS)).item() < 1.0
