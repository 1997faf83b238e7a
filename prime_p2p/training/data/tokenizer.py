"""What tokens mean: bytes, or the fast tokenizer of a folder or of the Hugging Face hub.

Peers agree on a tokenizer by the hash of its content, not by where they have it from. A peer keeps it in its folder, so
that a checkpoint can be exported, and completed texts be read, without it being anywhere else.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from blake3 import blake3
from tokenizers import Tokenizer as Backend

from prime_p2p.errors import BadInput
from prime_p2p.recipe import BYTES, HUB, DataRecipe, of_the_hub

END_OF_FILE = 0
"""The byte that ends a text."""

KEPT = "tokenizer"  # the folder of it in a peer's folder
CONTENT, CONFIG = "tokenizer.json", "tokenizer_config.json"  # as transformers names them

Tokens = npt.NDArray[np.unsignedinteger[Any]]


class Tokenizer(Protocol):
    """``hash`` names the content (empty for bytes), tokens are below ``size``, and ``end`` ends a document."""

    hash: str
    size: int
    end: int

    def encode(self, texts: Sequence[bytes]) -> list[Sequence[int]]:
        """The tokens of each text, without one that ends it."""
        ...

    def decode(self, tokens: Sequence[int]) -> str: ...

    def keep(self, folder: Path) -> None:
        """Write what it needs to a folder, which is there complete or not at all. Raises OSError."""
        ...


class ByteTokenizer:
    """A token is a byte, and byte 0 ends a document."""

    hash = ""
    size = 256
    end = END_OF_FILE

    def encode(self, texts: Sequence[bytes]) -> list[Sequence[int]]:
        return list(texts)

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode("utf-8", "replace")

    def keep(self, folder: Path) -> None:
        """It needs nothing."""


class FastTokenizer:
    """One of ``tokenizers``, from the content of its file. ``end_of_text`` is the token that ends a document."""

    def __init__(self, content: bytes, end_of_text: str, place: str) -> None:
        """Raises BadInput where ``content``, which ``place`` holds, is none, or has no such token."""
        self.content = content
        self.end_of_text = end_of_text
        try:
            self.backend = Backend.from_str(content.decode())
        except Exception as error:  # noqa: BLE001 - tokenizers raises Exception itself
            raise BadInput(f"data.tokenizer: {place}: {CONTENT} is no fast tokenizer: {_one_line(error)}") from None
        self.backend.no_padding()
        self.backend.no_truncation()
        end = self.backend.token_to_id(end_of_text)
        if end is None:
            raise BadInput(f"data.tokenizer: {place}: its eos_token {end_of_text!r} is not in its vocabulary")
        self.end = end
        self.size = max(self.backend.get_vocab(with_added_tokens=True).values()) + 1
        self.hash = blake3(content + b"\0" + end_of_text.encode()).hexdigest(16)

    def encode(self, texts: Sequence[bytes]) -> list[Sequence[int]]:
        decoded = [text.decode("utf-8", "replace") for text in texts]
        return [encoding.ids for encoding in self.backend.encode_batch(decoded, add_special_tokens=False)]

    def decode(self, tokens: Sequence[int]) -> str:
        return self.backend.decode(list(tokens))

    def keep(self, folder: Path) -> None:
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        (partial / CONTENT).write_bytes(self.content)
        (partial / CONFIG).write_text(json.dumps({"eos_token": self.end_of_text}), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(partial, folder)


def tokenizer_of(recipe: DataRecipe, folder: Path) -> Tokenizer:
    """The tokenizer of a recipe; a relative path begins in ``folder``.

    Raises:
        BadInput: there is none, or it is not the one that the recipe names by its hash.
    """
    tokenizer: Tokenizer = ByteTokenizer()
    if recipe.tokenizer.startswith(HUB):
        tokenizer = _from_the_hub(recipe.tokenizer)
    elif recipe.tokenizer != BYTES:
        tokenizer = read(folder / recipe.tokenizer)
    if recipe.tokenizer_hash not in ("", tokenizer.hash):
        raise BadInput(
            f"data.tokenizer_hash: {recipe.tokenizer} has {tokenizer.hash or 'no hash, as bytes have'}, not "
            f"{recipe.tokenizer_hash}: it is another tokenizer than that of the run"
        )
    return tokenizer


def read(folder: Path) -> FastTokenizer:
    """The tokenizer in a folder. Raises BadInput where there is none."""
    try:
        content, config = (folder / CONTENT).read_bytes(), (folder / CONFIG).read_bytes()
    except OSError as error:
        where = error.filename or folder
        raise BadInput(
            f"data.tokenizer: {where}: {error.strerror}; give a folder with the {CONTENT} and {CONFIG} of transformers"
        ) from None
    return FastTokenizer(content, _end_of_text(config, str(folder)), str(folder))


def _from_the_hub(name: str) -> FastTokenizer:
    from huggingface_hub import hf_hub_download

    repository, revision = of_the_hub(name)
    try:
        found = [hf_hub_download(repository, file, revision=revision, token=False) for file in (CONTENT, CONFIG)]
    except Exception as error:  # noqa: BLE001 - of the hub's client, of HTTP, or of the machine
        raise BadInput(f"data.tokenizer: {name} cannot be fetched from the hub: {_one_line(error)}") from None
    content, config = (Path(file).read_bytes() for file in found)
    return FastTokenizer(content, _end_of_text(config, name), name)


def _end_of_text(config: bytes, place: str) -> str:
    try:
        token = json.loads(config).get("eos_token")
    except (ValueError, AttributeError):
        raise BadInput(f"data.tokenizer: {place}: {CONFIG} is no JSON object") from None
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        raise BadInput(f"data.tokenizer: {place}: {CONFIG} names no eos_token, which is to end each document")
    return text


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
