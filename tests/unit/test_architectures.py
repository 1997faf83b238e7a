"""Models of several architectures, tiny: what a run does with one, whichever it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blake3 import blake3
from transformers import AutoModelForCausalLM

from prime_p2p.errors import BadInput
from prime_p2p.recipe import DeviceRecipe, InnerRecipe, ModelRecipe
from prime_p2p.training import model as models
from prime_p2p.training import optimizer
from prime_p2p.training.batch import Batch
from prime_p2p.training.export import export
from prime_p2p.training.flat import FlatParameters
from prime_p2p.training.forward import Forward, layers

SHAPE = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": SHAPE,
    "gpt2": {"vocab_size": 300, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
    | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "qwen2": SHAPE | {"tie_word_embeddings": True},
    "gemma2": SHAPE | {"head_dim": 8, "sliding_window": 8},
    "mixtral": SHAPE | {"num_local_experts": 4},
}
CPU = torch.device("cpu")

every_architecture = pytest.mark.parametrize("architecture", MODELS)


def recipe_of(architecture: str) -> ModelRecipe:
    return ModelRecipe(architecture=architecture, config=MODELS[architecture], context=24)


def digest(architecture: str) -> str:
    """A name for the initial weights of a model."""
    built = models.build(recipe_of(architecture), seed=3)
    return blake3(FlatParameters(built).to_numpy().tobytes()).hexdigest()


def batch(sequences: int = 4, tokens: int = 25) -> Batch:
    return Batch(torch.from_numpy(np.arange(sequences * tokens).reshape(sequences, tokens) * 7 % 300))


def test_a_model_is_the_same_bytes_in_another_process() -> None:
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_architectures as t\n"
    code += "print(*(t.digest(name) for name in t.MODELS))"
    other = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, timeout=100)
    assert other.stdout.split() == [digest(name) for name in MODELS]


@every_architecture
def test_a_model_starts_near_chance_and_learns(architecture: str) -> None:
    forward = Forward(models.build(recipe_of(architecture), seed=0), DeviceRecipe(), CPU)
    inner = InnerRecipe(learning_rate=0.01, batch_size=4)
    adamw = optimizer.build(inner, forward.model)
    losses = []
    for step in range(12):
        losses.append(forward.loss(batch()))
        losses[-1].backward()
        optimizer.step(adamw, inner, step)
    assert np.log(300) - 0.1 < losses[0].item() < np.log(300) + 1.5
    assert losses[-1].item() < losses[0].item() - 1


@every_architecture
def test_an_exported_model_is_what_transformers_opens(architecture: str, tmp_path: Path) -> None:
    built = models.build(recipe_of(architecture), seed=0)
    export(built, tmp_path / "out")
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert np.array_equal(FlatParameters(opened).to_numpy(), FlatParameters(built).to_numpy())


@every_architecture
def test_packed_documents_are_as_they_would_be_alone(architecture: str) -> None:
    built = models.build(recipe_of(architecture), seed=0)
    tokens = batch(2).tokens
    documents = torch.tensor([[0] * 10 + [1] * 15, [4] * 3 + [5] * 1 + [6] * 21])
    alone = [tokens[0, :10], tokens[0, 10:], tokens[1, :3], tokens[1, 4:]]  # of one token there is nothing to predict
    losses = [models.loss(built, Batch(document[None])) * (len(document) - 1) for document in alone]
    expected = sum(losses) / sum(len(document) - 1 for document in alone)
    packed = Forward(built, DeviceRecipe(), CPU).loss(Batch(tokens, documents))
    assert packed.item() == pytest.approx(expected.item(), rel=1e-5)
    assert packed.item() != pytest.approx(models.loss(built, Batch(tokens)).item(), rel=1e-5)


@every_architecture
def test_bfloat16_leaves_parameters_and_gradients_in_float32(architecture: str) -> None:
    forward = Forward(models.build(recipe_of(architecture), seed=0), DeviceRecipe(precision="bfloat16"), CPU)
    exact = models.loss(forward.model, batch()).item()
    loss = forward.loss(batch())
    loss.backward()
    assert loss.item() == pytest.approx(exact, rel=0.02)
    assert loss.item() != exact
    kinds = {tensor.dtype for p in forward.model.parameters() for tensor in (p, p.grad) if tensor is not None}
    assert kinds == {torch.float32}


@every_architecture
def test_neither_compiling_nor_checkpoints_change_names_or_gradients(architecture: str) -> None:
    plain = Forward(models.build(recipe_of(architecture), seed=0), DeviceRecipe(), CPU)
    other = models.build(recipe_of(architecture), seed=0)
    layout = FlatParameters(other).layout
    both = Forward(other, DeviceRecipe(compile=True, checkpoint_activations=True), CPU, backend="eager")
    assert len(layers(other)) == 2
    assert FlatParameters(other).layout == layout
    for forward in (plain, both):
        forward.loss(batch()).backward()
    for mine, theirs in zip(plain.model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(mine.grad, theirs.grad, atol=1e-6)


def test_packed_documents_are_refused_where_the_model_would_mix_them() -> None:
    shape = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 48}
    opt = ModelRecipe(architecture="opt", config=shape | {"word_embed_proj_dim": 32}, context=24)
    forward = Forward(models.build(opt, seed=0), DeviceRecipe(), CPU)
    forward.loss(batch())
    with pytest.raises(BadInput, match=r"^model: opt mixes documents that are packed into one sequence"):
        forward.loss(Batch(batch().tokens, torch.tensor([0] * 10 + [1] * 15).expand(4, 25)))


def test_what_transformers_does_not_have_is_refused_in_one_line() -> None:
    for recipe, reason in (
        ({"architecture": "qwen9"}, r"^model.architecture: 'qwen9' is none that transformers has; did you mean qwen"),
        ({"architecture": "gpt2", "config": {"n_layers": 2}}, r"^model.config.n_layers: gpt2 has no such key; did you"),
        ({"architecture": "t5"}, r"^model: transformers cannot build it: "),
        ({"architecture": "gpt2", "context": 2000}, r"^model.context: must be at most 1024, the positions that"),
        ({"architecture": "llama", "config": SHAPE | {"num_attention_heads": 5}}, r"^model"),
    ):
        with pytest.raises(BadInput, match=reason) as caught:
            models.build(ModelRecipe(**({"context": 16} | recipe)), seed=0)
        assert "\n" not in str(caught.value)


def test_a_tokenizer_must_fit_the_vocabulary() -> None:
    config = models.config_of(recipe_of("llama"))
    models.check_vocabulary(config, 300)
    with pytest.raises(BadInput, match=r"the tokenizer has 301 tokens, the model 300; give the model as many or more"):
        models.check_vocabulary(config, 301)
