"""The model of a run: a causal language model of transformers that every peer builds with the same bytes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from prime_p2p.errors import BadInput
from prime_p2p.recipe import ModelRecipe
from prime_p2p.recipe.model_source import ModelSource
from prime_p2p.training.batch import Batch
from prime_p2p.training.cross_entropy import IGNORED, mean_cross_entropy
from prime_p2p.training.data import END_OF_FILE
from prime_p2p.training.initial_weights import initialise

_TOKENS = {"bos_token_id": None, "eos_token_id": END_OF_FILE, "pad_token_id": None}
"""Of an architecture, unless the recipe says otherwise: those of transformers are of a vocabulary of its own."""


def build(
    recipe: ModelRecipe, seed: int, folder: Path = Path(), attention: str = "auto", trained: bool = False
) -> PreTrainedModel:
    """Build the fp32 model of a recipe on the CPU, with its initial weights; with any weights where it is ``trained``,
    for whoever has those of a state of the run. A relative ``model.source`` begins in ``folder``.

    The global generators of torch and numpy are left as they were.

    Raises:
        BadInput: transformers cannot build it, or the weights are not there, or are others than the run began with.
    """
    config = config_of(recipe, attention)
    if recipe.weights == "given" and not trained:
        return _given(recipe, config, folder)
    with torch.random.fork_rng(devices=[]):
        model = from_config(config)
    if not trained:
        initialise(model, seed)
    return model


def config_of(recipe: ModelRecipe, attention: str = "auto") -> PretrainedConfig:
    """What transformers builds a model from. Raises BadInput where it would not, or the context is too long for it."""
    architecture, keys = recipe.described
    if architecture not in CONFIG_MAPPING:
        close = difflib.get_close_matches(architecture, list(CONFIG_MAPPING), n=1)
        advice = f"did you mean {close[0]}?" if close else "a model type of transformers, such as qwen2"
        raise BadInput(f"model.architecture: {architecture[:80]!r} is none that transformers has; {advice}")
    kind: Callable[..., PretrainedConfig] = CONFIG_MAPPING[architecture]
    if not recipe.source:
        _check_keys(architecture, kind(), keys)
    wanted: dict[str, Any] = {} if attention == "auto" else {"attn_implementation": attention}
    try:
        config = kind(**(_TOKENS | keys), **wanted)
    except Exception as error:  # noqa: BLE001 - each architecture checks its keys in a way of its own
        raise BadInput(f"model.config: transformers refuses it: {_first_line(error)}") from None
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and recipe.context > positions:
        raise BadInput(f"model.context: must be at most {positions}, the positions that the model has")
    return config


def from_config(config: PretrainedConfig, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model with whatever weights transformers gives it. Raises BadInput where it has no causal one of the kind."""
    try:
        return AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    except (ValueError, TypeError, KeyError, AttributeError, ImportError) as error:
        raise BadInput(f"model: transformers cannot build it: {_first_line(error)}") from None


def check_vocabulary(config: PretrainedConfig, tokens: int) -> None:
    """Raises BadInput where a tokenizer has more tokens than the model."""
    if tokens > config.vocab_size:
        raise BadInput(
            f"model.vocab_size: the tokenizer has {tokens} tokens, the model {config.vocab_size}; give the model as "
            "many or more, or take another tokenizer"
        )


def loss(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy of the next token, in nats.

    Documents that are packed into one sequence are kept apart: each begins at position 0, none attends to another
    (transformers masks what such positions belong to), and the first token of one is nothing to predict.
    """
    inputs, targets = batch.tokens[:, :-1], batch.tokens[:, 1:]
    if batch.documents is None:
        logits = model(input_ids=inputs, use_cache=False).logits
    else:
        targets = targets.masked_fill(batch.documents[:, 1:] != batch.documents[:, :-1], IGNORED)
        positions = _positions(batch.documents[:, :-1])
        if model.config._attn_implementation == "flash_attention_2":  # which takes one sequence, however long
            inputs, positions = inputs.reshape(1, -1), positions.reshape(1, -1)
        logits = model(input_ids=inputs, position_ids=positions, use_cache=False).logits
    return mean_cross_entropy(logits.flatten(0, 1), targets.flatten())


def _positions(documents: torch.Tensor) -> torch.Tensor:
    """Of each token in its document; int64 [sequences, tokens], as ``documents``."""
    place = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return place - torch.where(begins, place, 0).cummax(dim=1).values


def _check_keys(architecture: str, default: PretrainedConfig, keys: Iterable[str]) -> None:
    known = {*vars(default), *default.attribute_map, "rope_theta"}
    for key in keys:
        if key not in known and not hasattr(default, key):
            close = difflib.get_close_matches(key, known, n=1)
            advice = f"; did you mean {close[0]}?" if close else ""
            raise BadInput(f"model.config.{key[:80]}: {architecture} has no such key{advice}")


def _given(recipe: ModelRecipe, config: PretrainedConfig, folder: Path) -> PreTrainedModel:
    if not recipe.source:
        raise BadInput("model.source: is not known here, and the initial weights are its")
    source = ModelSource(recipe.source, recipe.revision, folder)
    if source.digest() != recipe.digest:
        raise BadInput(f"model.source: {source.name}: has other weights than the run began with")
    with torch.random.fork_rng(devices=[]):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source.name,
            config=config,
            revision=recipe.revision,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    model, found = loaded
    absent = sorted({*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])})
    if absent:
        raise BadInput(
            f"model.source: {source.name}: has no {absent[0]} of the model's shape, and {len(absent) - 1} more"
        )
    return model


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", maxsplit=1)[0][:300]
