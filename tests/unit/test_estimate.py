"""Figures of an estimate against hand-computed ones, and against what the code they are of does."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from prime_p2p.builtin_recipes import find_recipe
from prime_p2p.diloco import DiLoCoOptions
from prime_p2p.errors import BadInput
from prime_p2p.estimate import JOURNAL, SNAPSHOTS, TRAINED, Estimate, check_memory, moments
from prime_p2p.outer.state import OuterState
from prime_p2p.recipe import DeviceRecipe, ModelRecipe, Recipe
from prime_p2p.state import shelf
from prime_p2p.state.checkpoint import Checkpoint, LocalProgress
from prime_p2p.state.checkpoints import Checkpoints
from prime_p2p.training import model, optimizer
from prime_p2p.training.batch import Batch
from prime_p2p.training.footprint import activation_bytes
from prime_p2p.training.forward import Forward

PARAMETERS = {
    "tiny": 492_160,
    "150m": 214_983_680,
    "1b": 1_100_048_384,
    "metagene-7b": 6_484_660_224,
    "10b": 10_211_381_248,
}


def estimate_of(name: str, *overrides: str, peers: int = 8) -> Estimate:
    return Estimate(Recipe.load(find_recipe(name), overrides), peers)


# ---- parameters


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_the_parameters_are_those_of_the_shape(name: str, parameters: int) -> None:
    assert estimate_of(name).parameters == parameters


def test_the_parameters_of_any_architecture_are_those_of_the_model_that_is_built() -> None:
    shape = ModelRecipe(architecture="gpt2", config={"n_embd": 32, "n_layer": 2, "n_head": 2}, context=16)
    built = model.build(shape, seed=0)
    table = Recipe.load(find_recipe("tiny")).model_copy(update={"model": shape})

    assert Estimate(table, 1).parameters == sum(parameter.numel() for parameter in built.parameters())


# ---- memory and disk


def test_bytes_of_a_model_with_four_million_and_some_parameters() -> None:
    shape = "model.vocab_size=1000", "model.hidden_size=256", "model.intermediate_size=512", "model.layers=5"
    estimate = estimate_of("tiny", *shape, "model.kv_heads=2", "checkpoint.every=20", "checkpoint.keep=3")
    n = 2 * 1000 * 256 + 5 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512 + 2 * 256) + 256
    vector = n + 4 * math.ceil(n / 1024)

    assert estimate.parameters == n
    assert estimate.model_bytes == 16 * n
    assert estimate.training_bytes == 16 * n + estimate.activation_bytes(4)
    assert estimate.host_bytes == 12 * n + 2 * vector
    assert estimate.resume_bytes == 20 * n + 2 * vector
    assert estimate.checkpoint_bytes == 20 * n
    assert estimate.disk_bytes == 4 * 20 * n + 21 * vector + 24 * n


def test_host_memory_is_fourteen_bytes_a_parameter_and_some_scales() -> None:
    estimate = estimate_of("10b")

    assert estimate.host_bytes / estimate.parameters == pytest.approx(14, rel=0.001)


@pytest.mark.parametrize(
    ("overrides", "precision"),
    [
        ((), torch.float32),
        ((), torch.bfloat16),
        (("model.layers=5", "model.vocab_size=512", "model.context=128"), torch.float32),
        (("device.checkpoint_activations=true",), torch.float32),
    ],
)
def test_activations_are_what_autograd_keeps_and_the_logits(overrides: tuple[str, ...], precision: torch.dtype) -> None:
    recipe = Recipe.load(find_recipe("tiny"), overrides)
    shape = recipe.model
    forward = Forward(model.build(shape, seed=0), recipe.device, torch.device("cpu"))
    forward.precision = precision
    own = {parameter.untyped_storage().data_ptr() for parameter in forward.model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        forward.loss(Batch(torch.zeros(4, shape.context + 1, dtype=torch.int64)))
    fixed, sequence = activation_bytes(shape, recipe.device, precision)
    logits, pieces = precision.itemsize * shape.context * shape.vocab_size, 12 * shape.context * shape.vocab_size
    again = 0
    if recipe.device.checkpoint_activations:  # what one layer keeps
        again = (activation_bytes(shape, DeviceRecipe(), precision)[1] - logits) // 2
    measured = sum(map(len, kept.values())) + 4 * (logits + again)

    assert fixed - pieces + 4 * sequence == pytest.approx(measured, rel=0.1)


def test_the_bound_that_needs_no_pass_is_one() -> None:
    for overrides in ((), ("model.layers=5", "model.kv_heads=1"), ("model.vocab_size=4096", "model.context=128")):
        estimate = replace(estimate_of("tiny", *overrides), gpu=False)
        assert estimate.training_bytes <= estimate.training_bytes_at_most


def test_too_little_memory_is_said_with_what_to_change() -> None:
    estimate = estimate_of("tiny", "inner.batch_size=100")
    check_memory(estimate, estimate.training_bytes)
    with pytest.raises(BadInput, match=r"the GPU has 0\.0\d+ GB left; set inner.accumulation to 4 or more$"):
        check_memory(estimate, estimate.model_bytes + estimate.activation_bytes(40))
    with pytest.raises(BadInput, match=r"set device.checkpoint_activations to true$"):
        check_memory(estimate, estimate.model_bytes + 1)
    with pytest.raises(BadInput, match=r"this machine has 0 GB left; take a smaller model, or a larger machine$"):
        check_memory(replace(estimate, gpu=False), 0)


def test_the_largest_batch_is_the_one_that_just_fits() -> None:
    estimate = estimate_of("1b", "inner.batch_size=15", "inner.accumulation=1")

    assert estimate.largest_batch(estimate.training_bytes) == 15
    assert estimate.largest_batch(estimate.training_bytes - 1) == 14
    assert estimate.largest_batch(estimate.model_bytes / 2) == 0


@pytest.mark.parametrize(("name", "momentum"), [("adamw", 0.95), ("sgd", 0.9), ("sgd", 0.0)])
def test_a_checkpoint_has_as_many_bytes_as_it_is_said_to_have(name: str, momentum: float, tmp_path: Path) -> None:
    recipe = Recipe.load(find_recipe("tiny"), [f"inner.optimizer={name}", f"inner.momentum={momentum}"])
    estimate = Estimate(recipe, peers=1)
    n = estimate.parameters
    built = model.build(recipe.model, seed=0)
    inner = optimizer.build(recipe.inner, built)
    model.loss(built, Batch(torch.zeros(1, 9, dtype=torch.int64))).backward()
    inner.step()
    outer = OuterState.initial(np.zeros(n, np.float32))
    local = LocalProgress(np.ones(n, np.float32), inner.state_dict(), 0, 0, torch.get_rng_state())
    folder = Checkpoints(tmp_path).save(Checkpoint(outer, local))

    assert sum(file.stat().st_size for file in folder.iterdir()) == pytest.approx(estimate.checkpoint_bytes, abs=50_000)
    assert bytes_of(inner) == moments(recipe.inner) * n
    assert sum(parameter.nbytes + parameter.grad.nbytes for parameter in built.parameters()) == TRAINED * n


def bytes_of(inner: torch.optim.Optimizer) -> int:
    """Of its moments, without the counters of steps."""
    return sum(value.nbytes for state in inner.state.values() for value in state.values() if value.numel() > 1)


def test_muon_keeps_no_more_than_it_is_said_to() -> None:
    recipe = Recipe.load(find_recipe("tiny"), ["inner.optimizer=muon"])
    built = model.build(recipe.model, seed=0)
    inner = optimizer.build(recipe.inner, built)
    model.loss(built, Batch(torch.zeros(1, 9, dtype=torch.int64))).backward()
    inner.step()
    n = Estimate(recipe, peers=1).parameters
    assert 4 * n < bytes_of(inner) <= moments(recipe.inner) * n


def test_only_a_micro_batch_has_activations() -> None:
    whole, parts = estimate_of("1b"), estimate_of("1b", "inner.accumulation=512")

    assert parts.training_bytes == parts.model_bytes + whole.activation_bytes(4)


def test_what_is_kept_on_disk_is_as_much_as_the_code_keeps() -> None:
    assert DiLoCoOptions().journal_length == JOURNAL
    assert shelf.KEPT + 1 == SNAPSHOTS  # and the state before a replay


# ---- a round


def test_a_round_of_four_sends_what_was_measured() -> None:
    """docs/performance.md: 75.3 MB a peer for 50 million parameters in a group of four."""
    estimate = estimate_of("1b", peers=4)

    assert estimate.round_bytes / estimate.parameters * 50 == pytest.approx(75.3, abs=0.05)


def test_half_the_bits_are_half_the_bytes_but_for_the_scales() -> None:
    whole, half = estimate_of("1b"), estimate_of("1b", "round.codec=int4")

    assert half.vector_bytes == 1_100_048_384 // 2 + 4 * math.ceil(1_100_048_384 / 1024)
    assert half.round_bytes == pytest.approx(whole.round_bytes / 2, rel=0.004)


def test_nobody_is_in_a_group_beyond_its_limit() -> None:
    assert estimate_of("1b", peers=100).group == 32
    assert estimate_of("1b", peers=100).round_bytes == estimate_of("1b", peers=32).round_bytes


def test_seconds_and_shares_of_a_hand_made_case() -> None:
    estimate = estimate_of("1b", peers=2)  # two peers send a vector each
    vector = 1_100_048_384 + 4 * math.ceil(1_100_048_384 / 1024)
    transfer, outer = vector * 8 / 600e6, 7.2e-9 * 1_100_048_384

    assert estimate.round_bytes == vector
    assert estimate.round_seconds(1000) == pytest.approx(transfer + outer)
    assert estimate.inner_seconds(4) == 500
    assert estimate.compute_share(4, 1000) == pytest.approx(500 / (500 + transfer + outer))
    assert estimate.bytes_per_hour(4, 1000) == pytest.approx(3600 * vector / (500 + transfer + outer))
    assert estimate.bytes_per_hour(4) == pytest.approx(3600 * vector / (500 + outer))


def test_the_smallest_bandwidth_is_the_one_that_gives_nine_tenths() -> None:
    estimate = estimate_of("1b")
    smallest = estimate.minimum_bandwidth(2.0)

    assert smallest is not None
    assert estimate.compute_share(2.0, smallest) == pytest.approx(0.9)


def test_no_bandwidth_is_enough_where_the_outer_step_alone_takes_too_long() -> None:
    assert estimate_of("10b").minimum_bandwidth(5.0) is None
    assert estimate_of("10b").minimum_bandwidth(50.0) is not None


def test_a_peer_alone_needs_no_bandwidth() -> None:
    alone = estimate_of("1b", peers=1)

    assert (alone.group, alone.round_bytes) == (1, 0)
    assert alone.minimum_bandwidth(5.0) == 0
