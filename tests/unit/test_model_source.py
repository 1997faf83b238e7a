"""Models that come from a folder: what peers agree on is what is in it, not where it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from prime_p2p.agreement import first_difference
from prime_p2p.errors import BadInput
from prime_p2p.recipe import Recipe
from prime_p2p.training import model as models
from prime_p2p.training.flat import FlatParameters

REST = """
context = 16
[inner]
learning_rate = 0.01
batch_size = 2
[round]
inner_steps = 3
[run]
name = "given"
"""


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as somebody publishes a model: bfloat16, and with code of its own that nobody runs."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(1)
    config = AutoConfig.for_model(
        "qwen2", vocab_size=300, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2
    )
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    table = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(table | {"auto_map": {"AutoModelForCausalLM": "evil.Evil"}}))
    (folder / "evil.py").write_text("raise AssertionError('this was run')")
    return folder


def recipe_from(folder: Path, keys: str = 'weights = "given"') -> Recipe:
    path = folder.parent / f"{folder.name}.toml"
    path.write_text(f'[model]\nsource = "{folder}"\n{keys}\n{REST}')
    return Recipe.load(path)


def test_given_weights_are_those_of_the_folder_in_float32(given: Path) -> None:
    recipe = recipe_from(given)
    built = models.build(recipe.model, seed=0)
    stored = AutoModelForCausalLM.from_pretrained(given, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in built.parameters()} == {torch.float32}
    assert all(torch.equal(a, b.float()) for a, b in zip(built.parameters(), stored.parameters(), strict=True))


def test_without_them_the_folder_says_the_architecture_alone(given: Path) -> None:
    random = models.build(recipe_from(given, "").model, seed=0)
    again = models.build(recipe_from(given, "").model, seed=0)
    stored = models.build(recipe_from(given).model, seed=0)
    assert random.config.hidden_size == 16
    assert np.array_equal(FlatParameters(random).to_numpy(), FlatParameters(again).to_numpy())
    assert not np.array_equal(FlatParameters(random).to_numpy(), FlatParameters(stored).to_numpy())


def test_two_copies_of_a_folder_agree_and_other_weights_do_not(given: Path, tmp_path: Path) -> None:
    shared = recipe_from(given).shared()
    copy = tmp_path / "copy"
    shutil.copytree(given, copy)
    assert recipe_from(copy).shared() == shared
    assert str(given) not in json.dumps(shared)
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    assert str(first_difference(shared, recipe_from(copy).shared())).startswith("model.digest: ")
    with pytest.raises(BadInput, match=r"copy: has other weights than the run began with$"):
        models.build(recipe_from(given).model.model_copy(update={"source": str(copy)}), seed=0)


def test_what_peers_agree_on_is_enough_for_a_model_without_initial_weights(given: Path) -> None:
    recipe = recipe_from(given)
    known = Recipe.from_shared(recipe.shared())
    built = models.build(known.model, seed=0, trained=True)
    assert FlatParameters(built).layout == FlatParameters(models.build(recipe.model, seed=0)).layout
    with pytest.raises(BadInput, match=r"^model.source: is not known here, and the initial weights are its$"):
        models.build(known.model, seed=0)


def test_keys_of_the_recipe_win_over_the_folder_and_peers_see_which_differ(given: Path) -> None:
    own = recipe_from(given, "config = { attention_dropout = 0.25 }")
    assert models.config_of(own.model).attention_dropout == 0.25
    difference = first_difference(recipe_from(given, "").shared(), own.shared())
    assert difference == "model.config.attention_dropout: 0.0 here, 0.25 there"


@pytest.mark.parametrize(
    ("keys", "change", "reason"),
    [
        ("", lambda folder: (folder / "config.json").unlink(), r"config.json cannot be used: "),
        ("", lambda folder: (folder / "config.json").write_text("[]"), r"config.json cannot be used: "),
        ("", lambda folder: (folder / "config.json").write_text('{"model_type": 3}'), r"architecture"),
        ('weights = "given"', lambda folder: (folder / "model.safetensors").unlink(), r"has no weights as safetensors"),
        ('weights = "given"\ndigest = "' + "0" * 64 + '"', lambda folder: None, r"model.digest: is that of other"),
        ("layers = 3", lambda folder: None, r"model.layers: is for a Llama by its shape; set num_hidden_layers in"),
    ],
)
def test_a_folder_that_cannot_be_used_is_one_line(
    keys: str, change: Callable[[Path], object], reason: str, given: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(given, copy)
    change(copy)
    with pytest.raises(BadInput, match=reason) as caught:
        models.build(recipe_from(copy, keys).model, seed=0)
    assert "\n" not in str(caught.value)
