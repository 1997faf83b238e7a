"""The training of a peer of two ranks, rank 0 of which is this process, beside that of one of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from prime_p2p.allreduce import codec
from prime_p2p.allreduce.codec import BlockVector, Float32
from prime_p2p.recipe import Recipe
from prime_p2p.training.batch import Batch
from prime_p2p.training.pseudo_gradient import PseudoGradient
from prime_p2p.training.ranks import trainer as trainers
from prime_p2p.training.ranks.launch import Launch
from prime_p2p.training.ranks.part import Place
from prime_p2p.training.ranks.trainer import ShardedTrainer
from prime_p2p.training.trainer import Trainer

RECIPE = Path(__file__).parents[2] / "peers" / "tiny.toml"
SHAPE = {"hidden_size": 18, "intermediate_size": 27, "layers": 2, "heads": 3, "kv_heads": 1, "context": 16}
SETS = [*(f"model.{key}={value}" for key, value in SHAPE.items()), "inner.batch_size=4"]

AnyTrainer = Trainer | ShardedTrainer


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return Recipe.load(RECIPE, SETS)


@pytest.fixture(scope="module")
def sharded(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardedTrainer]:
    """A window takes a part of the vector only, and no parameter has rows that two ranks share equally."""
    with pytest.MonkeyPatch.context() as patch, closing(Launch.of(2, {}).crew()) as crew:
        patch.setattr(trainers, "ELEMENTS", 1000)
        yield ShardedTrainer(recipe, Place(0, 2, "cpu", tmp_path_factory.mktemp("ranks")), crew, threads=1)


@pytest.fixture
def whole(recipe: Recipe) -> Trainer:
    return Trainer(recipe, torch.device("cpu"))


def batch(number: int) -> Batch:
    generator = torch.Generator().manual_seed(number)
    return Batch(torch.randint(0, 256, (4, SHAPE["context"] + 1), generator=generator))


def begin(trainer: AnyTrainer, anchor: Float32) -> None:
    trainer.parameters.write(0, anchor)
    trainer.optimizer.state.clear()


def inner_steps(trainer: AnyTrainer, recipe: Recipe, first: int, count: int) -> list[float]:
    return [trainer.step(batch(number), recipe.inner, number) for number in range(first, first + count)]


def test_the_vector_is_that_of_the_whole_model(sharded: ShardedTrainer, whole: Trainer) -> None:
    assert (sharded.parameters.n, sharded.parameters.layout) == (whole.parameters.n, whole.parameters.layout)
    assert list(sharded.parameters.ranges()) == list(whole.parameters.ranges())
    assert sharded.parameters.equal(whole.parameters.to_numpy()), "the initial values"


def test_any_part_of_the_vector_is_read_and_written_at_all_ranks(sharded: ShardedTrainer) -> None:
    n = sharded.parameters.n
    vector = np.random.default_rng(0).normal(size=n).astype(np.float32)
    sharded.parameters.write(0, vector)
    assert sharded.parameters.equal(vector)
    for start, stop in ((0, 1), (17, 1234), (999, 1001), (n - 3000, n)):
        out = np.empty(stop - start, np.float32)
        sharded.parameters.read(start, out)
        assert np.array_equal(out, vector[start:stop])
        sharded.parameters.write(start, -out)
        vector[start:stop] = -out
    sharded.parameters.add(vector, 1.0)
    assert np.array_equal(sharded.parameters.to_numpy(), vector + vector)
    sharded.parameters.add(vector, -1.0)
    assert sharded.parameters.equal(vector)


def test_two_peers_of_two_ranks_make_the_update_of_two_peers_of_one(
    sharded: ShardedTrainer, whole: Trainer, recipe: Recipe
) -> None:
    anchor = whole.parameters.to_numpy()

    def update(trainer: AnyTrainer) -> tuple[Float32, list[float]]:
        mean, scratch = np.empty(len(anchor), np.float32), np.empty(codec.CHUNK, np.float32)
        mine, losses = PseudoGradient(trainer.parameters, 0), []
        for peer in range(2):
            begin(trainer, anchor)
            losses += inner_steps(trainer, recipe, 100 * peer, 10)
            mine.take(anchor, 10)
            codec.accumulate(mean, mine.blocks, 0.5, peer == 0, scratch)
        blocks, out = BlockVector.empty(len(anchor)), np.empty(len(anchor), np.float32)
        codec.quantise(mean, blocks)
        codec.dequantise(blocks, out)
        return out, losses

    (ours, our_losses), (theirs, their_losses) = update(sharded), update(whole)
    assert our_losses == pytest.approx(their_losses, rel=1e-5)
    # Sums in another order may round an element of a pseudo-gradient to the next of the 127 levels of its block, and
    # then its mean again: an element is off by two levels at most, and few are so near to the middle between two.
    apart = np.abs(ours - theirs)
    assert apart.max() <= 2 / 127 * np.abs(theirs).max()
    assert np.linalg.norm(apart) <= 1e-3 * np.linalg.norm(theirs)


def test_the_validation_loss_is_that_of_the_whole_model(sharded: ShardedTrainer, whole: Trainer) -> None:
    sharded.parameters.write(0, whole.parameters.to_numpy())
    sequences = batch(0).tokens[:3]
    assert sharded.validation_loss(sequences) == pytest.approx(whole.validation_loss(sequences), rel=1e-6)


def test_the_optimizer_state_is_that_of_the_whole_model_in_both_directions(
    sharded: ShardedTrainer, whole: Trainer, recipe: Recipe
) -> None:
    begin(sharded, whole.parameters.to_numpy())
    for trainer in (sharded, whole):
        inner_steps(trainer, recipe, 0, 3)
    ours, theirs = sharded.optimizer.state_dict(), whole.optimizer.state_dict()
    assert ours["param_groups"] == theirs["param_groups"]
    for index, values in theirs["state"].items():
        assert values.keys() == ours["state"][index].keys()
        for name, value in values.items():
            torch.testing.assert_close(ours["state"][index][name], value)

    begin(sharded, whole.parameters.to_numpy())
    assert sharded.optimizer.state_dict()["state"] == {}
    sharded.optimizer.load_state_dict(theirs)
    back = sharded.optimizer.state_dict()["state"]
    assert all(torch.equal(back[i][name], value) for i in back for name, value in theirs["state"][i].items())
    assert inner_steps(sharded, recipe, 3, 3) == pytest.approx(inner_steps(whole, recipe, 3, 3), rel=1e-5)
