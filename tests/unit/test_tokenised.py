"""Tokens on the disk: made once, whatever interrupts the making, and what they mean is agreed on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from prime_p2p.errors import BadInput
from prime_p2p.long_work import Advance, ignore
from prime_p2p.recipe import DataRecipe
from prime_p2p.training.data.corpus import Corpus, Places
from prime_p2p.training.data.sources import Record
from prime_p2p.training.data.tokenised import Documents, tokenised
from prime_p2p.training.data.tokenizer import KEPT, ByteTokenizer, FastTokenizer, read, tokenizer_of

WORDS = ["<end>", "the", "cat", "sat", "on", "mat"]


def write_tokenizer(folder: Path, words: list[str] = WORDS, eos: object = "<end>") -> Path:
    backend = Backend(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<end>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(backend.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    return folder


@dataclass
class Listed:
    """A source of these texts, where None is damaged; it breaks down where ``breaks_at`` says."""

    texts: list[bytes | None]
    breaks_at: int | None = None
    read: int = 0
    identity: list[object] = field(default_factory=list)
    name: str = "texts"

    @property
    def size(self) -> int:
        return sum(len(text or b"") for text in self.texts)

    def records(self, read: Advance = ignore) -> Iterator[Record | None]:
        for number, text in enumerate(self.texts):
            if number == self.breaks_at:
                raise KeyboardInterrupt
            self.read += 1
            read(len(text or b""))
            yield None if text is None else Record(text, held_out=number % 5 == 0)


def say_nothing(text: str) -> None:
    pass


def documents(side: Documents) -> list[bytes]:
    return [bytes(part) for part in np.split(side.tokens, side.ends)[:-1]]


def test_tokens_are_kept_document_by_document_and_read_back_without_the_source(tmp_path: Path) -> None:
    texts: list[bytes | None] = [b"text %d" % number for number in range(1000)]
    for source in (Listed(texts), Listed(texts, breaks_at=0)):
        sides, progress = tokenised(source, ByteTokenizer(), 0, tmp_path / "tokens", say_nothing)
        assert documents(sides["validation"]) == [b"text %d\0" % number for number in range(0, 1000, 5)]
        assert documents(sides["train"]) == [b"text %d\0" % number for number in range(1000) if number % 5]
        assert isinstance(sides["train"].tokens, np.memmap)
    assert (progress.records, progress.damaged, progress.complete) == (1000, 0, True)


@pytest.mark.parametrize("saved", [True, False])
def test_a_making_that_was_interrupted_goes_on_and_ends_in_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: bool
) -> None:
    monkeypatch.setattr("prime_p2p.training.data.tokenised.SAVE_EVERY", 0.0 if saved else 1e9)
    texts: list[bytes | None] = [b"text %d" % number for number in range(1000)]
    with pytest.raises(KeyboardInterrupt):
        tokenised(Listed(texts, breaks_at=900), ByteTokenizer(), 0, tmp_path / "one", say_nothing)
    said: list[str] = []
    one, _ = tokenised(Listed(texts), ByteTokenizer(), 0, tmp_path / "one", said.append)
    other, _ = tokenised(Listed(texts), ByteTokenizer(), 0, tmp_path / "other", say_nothing)
    assert said == (["the first 768 records are tokenised already; going on"] if saved else [])
    for side in ("train", "validation"):
        assert documents(one[side]) == documents(other[side])


def test_damaged_records_are_left_out_counted_and_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    texts = [b"x", None, b"y", None, b"z"]
    sides, _ = tokenised(Listed(texts), ByteTokenizer(), 0, tmp_path, said.append)
    assert [*documents(sides["validation"]), *documents(sides["train"])] == [b"x\0", b"y\0", b"z\0"]
    assert said == ["2 of 5 records of the data are damaged and left out"]


def test_who_watches_is_told_of_every_byte_that_was_read(tmp_path: Path, watched: Any) -> None:
    texts: list[bytes | None] = [b"text %d" % number for number in range(1000)]
    tokenised(Listed(texts), ByteTokenizer(), 0, tmp_path / "all", say_nothing, watched)
    tokenised(Listed(texts), ByteTokenizer(), 600, tmp_path / "some", say_nothing, watched)
    whole, part = watched.works
    assert (whole.done, whole.total, whole.unit) == (sum(map(len, filter(None, texts))),) * 2 + ("bytes",)
    assert (part.done, part.total, part.unit) == (600, 600, "records")


def test_only_as_many_records_are_read_as_are_asked_for(tmp_path: Path) -> None:
    source = Listed([b"x"] * 100)
    tokenised(source, ByteTokenizer(), 7, tmp_path, say_nothing)
    assert source.read == 7


@pytest.mark.parametrize(
    ("texts", "message"), [([], "data.source: texts: holds no records"), ([None] * 3, "all of its 3 records are dam")]
)
def test_a_source_of_nothing_is_bad_input(tmp_path: Path, texts: list[bytes | None], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        tokenised(Listed(texts), ByteTokenizer(), 0, tmp_path, say_nothing)


def test_a_corpus_of_tokens_is_made_in_the_cache_and_found_there_again(tmp_path: Path) -> None:
    text = tmp_path / "texts.jsonl"
    text.write_text("".join(json.dumps({"text": "the cat sat on mat " * (1 + n % 3)}) + "\n" for n in range(300)))
    recipe = DataRecipe(source=str(text), format="jsonl", tokenizer=str(write_tokenizer(tmp_path / "words")))
    tokenizer = tokenizer_of(recipe, Path())
    places = Places(cache=tmp_path / "cache")
    made = Corpus.load(recipe, places, tokenizer)
    assert made.train.dtype == np.uint8
    assert set(np.unique(made.train)) == set(range(6))
    (folder,) = (tmp_path / "cache").iterdir()
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert Corpus.load(recipe, places, tokenizer).fingerprint == made.fingerprint
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    text.write_text(text.read_text() + '{"text": "mat"}\n')
    assert Corpus.load(recipe, places, tokenizer).fingerprint != made.fingerprint


def test_a_tokenizer_is_known_by_its_content_wherever_it_is(tmp_path: Path) -> None:
    one, other = read(write_tokenizer(tmp_path / "one")), read(write_tokenizer(tmp_path / "other" / "place"))
    assert one.hash == other.hash
    assert read(write_tokenizer(tmp_path / "more", [*WORDS, "dog"])).hash != one.hash
    assert one.hash not in ("", read(write_tokenizer(tmp_path / "eos", eos="mat")).hash)


def test_a_tokenizer_ends_documents_with_its_end_of_text(tmp_path: Path) -> None:
    tokenizer = read(write_tokenizer(tmp_path / "one", eos={"content": "<end>", "special": True}))
    assert (tokenizer.end, tokenizer.size) == (0, 6)
    assert tokenizer.encode([b"the cat", b""]) == [[1, 2], []]
    assert tokenizer.decode([1, 2]) == "the cat"


def test_a_kept_tokenizer_is_the_same(tmp_path: Path) -> None:
    tokenizer = read(write_tokenizer(tmp_path / "one"))
    for _ in range(2):
        tokenizer.keep(tmp_path / KEPT)
        assert read(tmp_path / KEPT).hash == tokenizer.hash
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", KEPT]


def test_a_tokenizer_that_cannot_be_used_is_bad_input_in_one_line(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "words")
    recipe = DataRecipe(tokenizer=str(folder))
    expected = FastTokenizer((folder / "tokenizer.json").read_bytes(), "<end>", "here").hash
    assert tokenizer_of(DataRecipe(tokenizer=str(folder), tokenizer_hash=expected), Path()).hash == expected
    with pytest.raises(BadInput, match=r"^data.tokenizer_hash: .* it is another tokenizer than that of the run$"):
        tokenizer_of(DataRecipe(tokenizer=str(folder), tokenizer_hash="0" * 32), Path())
    with pytest.raises(BadInput, match=r"^data.tokenizer: .*nowhere/tokenizer.json: No such file or directory; give a"):
        tokenizer_of(DataRecipe(tokenizer=str(tmp_path / "nowhere")), Path())
    for name, content, message in (
        ("tokenizer_config.json", "{}", "names no eos_token"),
        ("tokenizer_config.json", "[]", "is no JSON object"),
        ("tokenizer_config.json", '{"eos_token": "dog"}', "its eos_token 'dog' is not in its vocabulary"),
        ("tokenizer.json", "{}", "is no fast tokenizer: "),
    ):
        write_tokenizer(folder)
        (folder / name).write_text(content)
        with pytest.raises(BadInput, match=message) as raised:
            tokenizer_of(recipe, Path())
        assert "\n" not in str(raised.value)
