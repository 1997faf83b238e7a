"""The inner optimizers: what each does, and that it goes on after a restart."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peer_folders import small_recipe

from prime_p2p.errors import BadInput
from prime_p2p.outer.state import OuterState
from prime_p2p.recipe import InnerRecipe
from prime_p2p.state.checkpoint import Checkpoint, LocalProgress
from prime_p2p.state.checkpoints import Checkpoints
from prime_p2p.training import model as models
from prime_p2p.training import optimizer
from prime_p2p.training.batch import Batch

CONSTANT = InnerRecipe(learning_rate=0.5, warmup_steps=4, batch_size=1)


def layer() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(3, 3)


def test_a_step_is_the_one_adamw_makes_at_the_rate_of_the_global_step() -> None:
    ours, reference = layer(), layer()
    inner = InnerRecipe(learning_rate=0.1, weight_decay=0.0, clip=0.0, warmup_steps=10, batch_size=1)
    adamw = optimizer.build(inner, ours)
    expected = torch.optim.AdamW(reference.parameters(), lr=0.1, betas=inner.betas, weight_decay=0.0)
    for step in range(3, 6):
        for module in (ours, reference):
            module(torch.ones(1, 3)).square().sum().backward()
        optimizer.step(adamw, inner, step)
        expected.param_groups[0]["lr"] = 0.1 * (step + 1) / 10
        expected.step()
        expected.zero_grad()
    for one, other in zip(ours.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_the_norm_of_the_gradients_is_clipped_over_all_parameters_together() -> None:
    clipped, scaled = layer(), layer()
    tight = InnerRecipe(learning_rate=0.1, clip=0.01, batch_size=1)
    loose = InnerRecipe(learning_rate=0.1, clip=0.0, batch_size=1)
    for inner, module in ((tight, clipped), (loose, scaled)):
        adamw = optimizer.build(inner, module)
        for factor in (1.0, 100.0):  # of two steps, so that Adam sees their ratio
            (factor * module(torch.ones(1, 3)).sum()).backward()
            if inner is loose:
                torch.nn.utils.clip_grad_norm_(module.parameters(), 0.01)
            optimizer.step(adamw, inner, 0)
    for one, other in zip(clipped.parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_matrices_decay_and_vectors_do_not() -> None:
    module = layer()
    weight, bias = module.weight.detach().clone(), module.bias.detach().clone()
    inner = InnerRecipe(learning_rate=0.1, weight_decay=0.5, batch_size=1)
    adamw = optimizer.build(inner, module)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(adamw, inner, 0)
    torch.testing.assert_close(module.weight.detach(), weight * 0.95)
    torch.testing.assert_close(module.bias.detach(), bias)


def test_a_step_drops_the_gradients_it_used() -> None:
    module = layer()
    adamw = optimizer.build(CONSTANT, module)
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step(adamw, CONSTANT, 0)
    assert all(parameter.grad is None for parameter in module.parameters())


def test_frozen_parameters_are_left_alone() -> None:
    module = layer()
    module.bias.requires_grad_(False)
    groups = optimizer.build(CONSTANT, module).param_groups
    assert [id(parameter) for group in groups for parameter in group["params"]] == [id(module.weight)]


# ---- every optimizer of a recipe


@pytest.mark.parametrize(("name", "rate"), [("adamw", 0.01), ("muon", 0.01), ("sgd", 0.1)])
def test_every_optimizer_lowers_the_loss(name: str, rate: float) -> None:
    inner = InnerRecipe(optimizer=name, learning_rate=rate, batch_size=1)
    model = small_model()
    inner_optimizer = optimizer.build(inner, model)
    losses = [inner_step(model, inner_optimizer, inner, step) for step in range(30)]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("name", ["adamw", "muon", "sgd"])
def test_training_goes_on_from_a_checkpoint_in_the_same_bits(name: str, tmp_path: Path) -> None:
    inner = InnerRecipe(optimizer=name, learning_rate=0.01, warmup_steps=20, batch_size=1)
    model = small_model()
    inner_optimizer = optimizer.build(inner, model)
    for step in range(5):
        inner_step(model, inner_optimizer, inner, step)
    saved = model.state_dict()
    local = LocalProgress(np.zeros(1, np.float32), inner_optimizer.state_dict(), 0, 0, torch.get_rng_state())
    Checkpoints(tmp_path).save(Checkpoint(OuterState.initial(np.ones(1, np.float32)), local))

    again = small_model()
    again.load_state_dict(saved)
    checkpoint = Checkpoints(tmp_path).load_newest()
    assert checkpoint is not None
    resumed = optimizer.build(inner, again)
    resumed.load_state_dict(checkpoint.local.optimizer)
    for step in range(5, 8):
        assert inner_step(again, resumed, inner, step) == inner_step(model, inner_optimizer, inner, step)
    for one, other in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["adamw", "muon", "sgd"])
def test_an_optimizer_whose_state_is_cleared_begins_as_a_new_one(name: str) -> None:
    inner = InnerRecipe(optimizer=name, learning_rate=0.01, batch_size=1)
    cleared, fresh = small_model(), small_model()
    inner_optimizer = optimizer.build(inner, cleared)
    for step in range(3):
        inner_step(cleared, inner_optimizer, inner, step)
    inner_optimizer.state.clear()
    cleared.load_state_dict(fresh.state_dict())
    inner_step(cleared, inner_optimizer, inner, 3)
    inner_step(fresh, optimizer.build(inner, fresh), inner, 3)
    for one, other in zip(cleared.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(one, other)


def test_muon_has_the_hidden_matrices_and_adamw_the_rest() -> None:
    model = small_model()
    inner_optimizer = optimizer.build(InnerRecipe(optimizer="muon", learning_rate=0.01, batch_size=1), model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    by_muon, *by_adamw = ({names[id(p)] for p in group["params"]} for group in inner_optimizer.param_groups)
    projections = ("q", "k", "v", "o", "gate", "up", "down")
    assert {name.split(".")[-2].removesuffix("_proj") for name in by_muon} == set(projections)
    assert by_adamw[0] == {"model.embed_tokens.weight", "lm_head.weight"}
    assert set.union(by_muon, *by_adamw) == set(names.values())


def test_what_the_author_changes_holds_from_the_next_step_on() -> None:
    before = InnerRecipe(learning_rate=0.1, betas=(0.9, 0.95), weight_decay=0.1, batch_size=1)
    after = InnerRecipe(learning_rate=0.2, betas=(0.5, 0.6), weight_decay=0.3, batch_size=1)
    module = layer()
    adamw = optimizer.build(before, module)
    optimizer.step(adamw, after, 0)
    matrices, vectors = adamw.param_groups
    assert (matrices["lr"], matrices["betas"], matrices["weight_decay"]) == (0.2, (0.5, 0.6), 0.3)
    assert (vectors["lr"], vectors["betas"], vectors["weight_decay"]) == (0.2, (0.5, 0.6), 0.0)


def test_sgd_is_that_of_torch_with_and_without_momentum() -> None:
    for momentum, nesterov in ((0.9, True), (0.9, False), (0.0, True)):
        inner = InnerRecipe(
            optimizer="sgd",
            learning_rate=0.1,
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=0.0,
            clip=0.0,
            batch_size=1,
        )
        ours, reference = layer(), layer()
        sgd = optimizer.build(inner, ours)
        expected = torch.optim.SGD(reference.parameters(), 0.1, momentum, nesterov=nesterov and momentum > 0)
        for step in range(3):
            for module in (ours, reference):
                module(torch.ones(1, 3)).square().sum().backward()
            optimizer.step(sgd, inner, step)
            expected.step()
            expected.zero_grad()
        for one, other in zip(ours.parameters(), reference.parameters(), strict=True):
            assert torch.equal(one, other)


def test_a_torch_without_muon_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim, "Muon")
    refusal = refusal_of("muon")
    assert refusal.endswith('has no "muon"; install torch 2.9 or a newer one')


def test_eight_bits_without_a_gpu_are_refused_in_one_line() -> None:
    assert refusal_of("adamw8bit").startswith('inner.optimizer: "adamw8bit" needs a GPU; this')


def test_eight_bits_without_their_package_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.Parameter, "is_cuda", True, raising=False)
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    assert refusal_of("adamw8bit").endswith("install it with: pip install 'prime_p2p[gpu]'")


def refusal_of(name: str) -> str:
    with pytest.raises(BadInput) as caught:
        optimizer.build(InnerRecipe(optimizer=name, learning_rate=0.01, batch_size=1), layer())
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def small_model() -> torch.nn.Module:
    return models.build(small_recipe().model, seed=1)


def inner_step(model: Any, inner_optimizer: torch.optim.Optimizer, inner: InnerRecipe, step: int) -> float:
    tokens = torch.arange(2 * 17).remainder(7).view(2, 17)
    loss = models.loss(model, Batch(tokens))
    loss.backward()
    optimizer.step(inner_optimizer, inner, step)
    return loss.item()
