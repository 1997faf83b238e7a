"""Text from a model of bytes, one byte after the other."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from prime_p2p.training.data import END_OF_FILE

BYTES = 256


def complete(model: PreTrainedModel, text: str, tokens: int, temperature: float, seed: int) -> str:
    """How the model goes on after ``text``: at most ``tokens`` bytes, fewer where it ends the text.

    Each byte is drawn from what the model expects, sharper the lower ``temperature`` is; at 0 the likeliest is taken.
    The same seed gives the same text. Of a long text the model sees the last ``context`` bytes.
    """
    known = list(text.encode("utf-8", "surrogateescape"))
    context = model.config.max_position_embeddings
    generator = torch.Generator().manual_seed(seed)
    new: list[int] = []
    with torch.inference_mode():
        while len(new) < tokens:
            seen = torch.tensor([[END_OF_FILE, *known, *new][-context:]])  # a text begins where another one ended
            scores = model(input_ids=seen, use_cache=False).logits[0, -1, :BYTES].float()
            byte = _draw(scores, temperature, generator)
            if byte == END_OF_FILE:
                break
            new.append(byte)
    return bytes(new).decode("utf-8", "replace")


def _draw(scores: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(scores.argmax())
    chances = torch.softmax((scores - scores.max()) / temperature, dim=0)
    return int(torch.multinomial(chances, 1, generator=generator))
