import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prime_p2p.recipe import InnerRecipe
from prime_p2p.training import optimizer

CONSTANT = InnerRecipe(learning_rate=0.5, warmup_steps=4, batch_size=1)
COSINE = InnerRecipe(learning_rate=0.5, warmup_steps=4, schedule="cosine", total_steps=104, batch_size=1)


def layer() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(3, 3)


@pytest.mark.parametrize("inner", [CONSTANT, COSINE])
def test_the_rate_warms_up_in_equal_steps_from_the_first(inner: InnerRecipe) -> None:
    assert [optimizer.learning_rate(inner, step) for step in range(5)] == [0.125, 0.25, 0.375, 0.5, 0.5]


def test_without_warm_up_the_first_step_has_the_whole_rate() -> None:
    assert optimizer.learning_rate(InnerRecipe(learning_rate=0.5, batch_size=1), 0) == 0.5


def test_a_constant_rate_stays() -> None:
    assert optimizer.learning_rate(CONSTANT, 10**9) == 0.5


def test_a_cosine_falls_to_a_tenth_and_stays_there() -> None:
    assert optimizer.learning_rate(COSINE, 54) == pytest.approx(0.275)
    assert optimizer.learning_rate(COSINE, 104) == pytest.approx(0.05)
    assert optimizer.learning_rate(COSINE, 10**9) == pytest.approx(0.05)


@given(st.integers(4, 200))
def test_a_cosine_never_rises(step: int) -> None:
    assert 0 < optimizer.learning_rate(COSINE, step + 1) <= optimizer.learning_rate(COSINE, step) <= 0.5


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
