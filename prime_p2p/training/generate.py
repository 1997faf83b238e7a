"""Text from a model, one token after the other."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from prime_p2p.long_work import Advance, ignore
from prime_p2p.training.data.tokenizer import ByteTokenizer, Tokenizer

BYTES = ByteTokenizer()


def complete(
    model: PreTrainedModel,
    text: str,
    tokens: int,
    temperature: float,
    seed: int,
    tokenizer: Tokenizer = BYTES,
    advance: Advance = ignore,
) -> str:
    """How the model goes on after ``text``: at most ``tokens`` tokens, fewer where it ends the text.

    Each token is drawn from what the model expects, sharper the lower ``temperature`` is; at 0 the likeliest is taken.
    The same seed gives the same text. Of a long text the model sees the last ``context`` tokens.
    """
    known = list(tokenizer.encode([text.encode("utf-8", "surrogateescape")])[0])
    context = model.config.max_position_embeddings
    generator = torch.Generator().manual_seed(seed)
    new: list[int] = []
    with torch.inference_mode():
        while len(new) < tokens:
            seen = torch.tensor([[tokenizer.end, *known, *new][-context:]])  # a text begins where another one ended
            scores = model(input_ids=seen, use_cache=False).logits[0, -1, : tokenizer.size].float()
            token = _draw(scores, temperature, generator)
            if token == tokenizer.end:
                break
            new.append(token)
            advance(1)
    return tokenizer.decode(new)


def _draw(scores: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(scores.argmax())
    chances = torch.softmax((scores - scores.max()) / temperature, dim=0)
    return int(torch.multinomial(chances, 1, generator=generator))
