"""The random weights a model begins with: the same bytes in every process and on every processor.

They are made from integers of a counter-based generator by one exact conversion and one multiplication each. torch's
own initialisation draws normals with the processor's vector instructions, and those differ in the last bit.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from blake3 import blake3
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

_INTO_THE_RESIDUAL = {"o_proj", "down_proj", "c_proj", "out_proj", "dense", "dense_4h_to_h", "fc2", "w2", "wo"}
"""What architectures call the matrices that write to the residual stream."""


def initialise(model: PreTrainedModel, seed: int) -> None:
    """Give a model that transformers has initialised weights that belong to ``seed`` and the parameters' names alone.

    What transformers fills with a constant (norms, biases) keeps it. Everything else is uniform around zero: the
    residual stream starts at 1 and grows little (GPT-2 scales what writes to it), and the output head starts so small
    that every token is about equally likely (as in muP, arXiv:2203.03466). A head that is tied to the embedding cannot:
    then a logit starts at about 1.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = head is not None and head.weight is embedding.weight
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if _is_constant(parameter):
                continue
            module = model.get_submodule(name.rpartition(".")[0])
            if isinstance(module, torch.nn.Embedding):
                deviation = 1 / math.sqrt(parameter.shape[1]) if tied else 1.0
            elif module is head:
                deviation = 1 / parameter.shape[1]
            else:
                deviation = _deviation(name, _fan_in(module, parameter), model.config.num_hidden_layers)
            values = _uniform(seed, name, parameter.numel(), deviation)
            parameter.copy_(torch.from_numpy(values).view_as(parameter))


def _is_constant(parameter: torch.Tensor) -> bool:
    first = parameter.flatten()[0]
    return bool((parameter == first).all()) and (parameter.numel() > 1 or first.item() in (0.0, 1.0))


def _fan_in(module: torch.nn.Module, parameter: torch.Tensor) -> int:
    """How many values one output is the sum of. A stack of matrices (experts) has them last, as a linear layer has."""
    return parameter.shape[0] if isinstance(module, Conv1D) else parameter.shape[-1]


def _deviation(name: str, fan_in: int, layers: int) -> float:
    if _INTO_THE_RESIDUAL.isdisjoint(name.split(".")[-2:]):
        return 1 / math.sqrt(fan_in)
    return 1 / math.sqrt(2 * layers * fan_in)


def _uniform(seed: int, name: str, size: int, deviation: float) -> np.ndarray:
    """fp32 [size], uniform around zero with a standard deviation; belongs to the seed and the name alone."""
    key = np.frombuffer(blake3(repr(("model", seed, name)).encode()).digest(16), dtype="<u8").astype(np.uint64)
    raw = np.random.Philox(key=key).random_raw(size)
    centred = (raw >> np.uint64(40)).astype(np.float32) - np.float32(2**23 - 0.5)  # 24 bits: exact in fp32
    return centred * np.float32(deviation * math.sqrt(3) / 2**23)
