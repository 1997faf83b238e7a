"""The model of a run: a Hugging Face Llama that every peer builds with the same bytes."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from blake3 import blake3
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from prime_p2p.recipe import ModelRecipe
from prime_p2p.training.data import END_OF_FILE


def build(recipe: ModelRecipe, seed: int) -> LlamaForCausalLM:
    """Build the fp32 model of a recipe on the CPU.

    The parameters are the same bytes in every process and on every processor: they are made from integers of a
    counter-based generator by one exact conversion and one multiplication each. torch's own initialisation draws
    normals with the processor's vector instructions, and those differ in the last bit. The global generators of torch
    and numpy are left as they were.
    """
    config = LlamaConfig(
        vocab_size=recipe.vocab_size,
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        max_position_embeddings=recipe.context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=END_OF_FILE,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(config)
    _initialise(model, seed)
    return model


def loss(model: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of the next token, in nats; `tokens` is int64 [batch, context + 1]."""
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def _initialise(model: LlamaForCausalLM, seed: int) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2:
                parameter.fill_(1.0)  # the norms
                continue
            deviation = _deviation(name, fan_in=parameter.shape[1], layers=model.config.num_hidden_layers)
            values = _uniform(seed, name, parameter.numel(), deviation)
            parameter.copy_(torch.from_numpy(values).view_as(parameter))


def _deviation(name: str, fan_in: int, layers: int) -> float:
    """The standard deviation a weight matrix starts with.

    The residual stream starts at 1 and grows little (GPT-2 scales what writes to it), and the output head starts so
    small that every byte is about equally likely (as in muP, arXiv:2203.03466).
    """
    if name.endswith("embed_tokens.weight"):
        return 1.0
    if name.endswith("lm_head.weight"):
        return 1 / fan_in
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        return 1 / math.sqrt(2 * layers * fan_in)
    return 1 / math.sqrt(fan_in)


def _uniform(seed: int, name: str, size: int, deviation: float) -> np.ndarray:
    """fp32 [size], uniform around zero with a standard deviation; belongs to the seed and the name alone."""
    key = np.frombuffer(blake3(repr(("model", seed, name)).encode()).digest(16), dtype="<u8").astype(np.uint64)
    raw = np.random.Philox(key=key).random_raw(size)
    centred = (raw >> np.uint64(40)).astype(np.float32) - np.float32(2**23 - 0.5)  # 24 bits: exact in fp32
    return centred * np.float32(deviation * math.sqrt(3) / 2**23)
