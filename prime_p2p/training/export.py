"""A trained model as a Hugging Face folder, which transformers opens without any code of this project."""

import itertools
import os
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from prime_p2p.errors import BadInput
from prime_p2p.training.data.tokenizer import FastTokenizer
from prime_p2p.training.data.tokenizer import Tokenizer as OurTokenizer

END_OF_TEXT = "<|endoftext|>"


def export(model: PreTrainedModel, folder: Path, tokenizer: OurTokenizer | None = None) -> None:
    """Write config, safetensors and tokenizer to a new or empty folder, which appears complete or not at all.

    Without ``tokenizer``, tokens are bytes.

    Raises:
        BadInput: the folder exists and holds something, or cannot be written.
    """
    folder = folder.absolute()
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadInput(f"{folder}: exists already; name a new or an empty folder")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as unfinished:
            complete = Path(unfinished) / folder.name
            if tokenizer is not None:
                model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.end
            model.save_pretrained(complete)
            _of_transformers(tokenizer, model).save_pretrained(complete)
            os.replace(complete, folder)
    except OSError as error:
        raise BadInput(f"{error.filename or folder}: cannot be written: {error.strerror or error}") from None


def _of_transformers(tokenizer: OurTokenizer | None, model: PreTrainedModel) -> PreTrainedTokenizerFast:
    context = model.config.max_position_embeddings
    if not isinstance(tokenizer, FastTokenizer):
        return byte_tokenizer(context)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend, eos_token=tokenizer.end_of_text, model_max_length=context
    )


def byte_tokenizer(context: int) -> PreTrainedTokenizerFast:
    """`ByteTokenizer` as transformers has it: token i is byte i, and token 0 ends a text."""
    vocabulary = {character: byte for byte, character in enumerate(_byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=END_OF_TEXT))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        unk_token=END_OF_TEXT,  # so a zero byte in a text is token 0, as in training
        pad_token=END_OF_TEXT,
        model_max_length=context,
        model_input_names=["input_ids", "attention_mask"],  # a Llama takes no token types
        clean_up_tokenization_spaces=False,
    )


def _byte_characters() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary, in the order of the bytes.

    As in GPT-2: printable bytes of Latin-1 stand for themselves, the others for the characters from U+0100 on. Byte 0
    has the name of the token that ends a text instead.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = itertools.count(0x100)
    characters = [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
    return [END_OF_TEXT, *characters[1:]]
