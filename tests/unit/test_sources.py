"""Every kind of source ends in the same documents, and every mistake in one line."""

from __future__ import annotations

import builtins
import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from prime_p2p.errors import BadInput
from prime_p2p.recipe import DataRecipe
from prime_p2p.training.data import hub
from prime_p2p.training.data.sources import source_of

TEXTS = [f"text {number}: größer" for number in range(200)]
READS = [b"ACGT" * (1 + number % 5) for number in range(20)]


def recipe_for(source: Path | str, **values: Any) -> DataRecipe:
    return DataRecipe(source=str(source), **values)


def texts_of(recipe: DataRecipe, folder: Path = Path()) -> list[str | None]:
    return [None if record is None else record.text.decode() for record in source_of(recipe, folder).records()]


def jsonl(path: Path, texts: Sequence[str], opened: Callable[..., Any] = open) -> Path:
    path.parent.mkdir(exist_ok=True)
    with opened(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"id": 1, "text": text}) + "\n" for text in texts)
    return path


def write_parquet(path: Path, texts: Sequence[str | None]) -> Path:
    path.parent.mkdir(exist_ok=True)
    parquet.write_table(pyarrow.table({"text": texts, "id": range(len(texts))}), path, row_group_size=50)
    return path


def test_lines_of_json_compressed_or_not_are_read_in_the_order_of_the_files_names(tmp_path: Path) -> None:
    jsonl(tmp_path / "b.jsonl.gz", TEXTS[100:], gzip.open)
    jsonl(tmp_path / "a.jsonl", TEXTS[:100])
    assert texts_of(recipe_for(tmp_path, format="jsonl")) == TEXTS


def test_a_column_of_parquet_files_is_read(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", TEXTS)
    assert texts_of(recipe_for(tmp_path, format="parquet")) == TEXTS


def test_a_folder_with_the_copy_of_a_data_set_stands_for_the_hub(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-00000-of-00002.parquet", TEXTS[:100])
    write_parquet(tmp_path / "train-00001-of-00002.parquet", TEXTS[100:])
    assert texts_of(recipe_for("hf:somebody/texts@1234", mirror=str(tmp_path))) == TEXTS


@pytest.mark.parametrize("opened", [open, gzip.open])
def test_the_bases_of_fasta_and_of_fastq_are_read(tmp_path: Path, opened: Callable[..., Any]) -> None:
    with opened(tmp_path / "a.fasta", "wb") as file:
        file.writelines(b">read %d\n%s\n%s\n" % (number, bases[:3], bases[3:]) for number, bases in enumerate(READS))
    with opened(tmp_path / "b.fastq", "wb") as file:
        file.writelines(b"@read\n%s\n+\n%s\n" % (bases, b"@" * len(bases)) for bases in READS)
    assert texts_of(recipe_for(tmp_path, format="reads")) == [bases.decode() for bases in READS] * 2


def test_every_byte_of_the_files_is_told_of_once_whatever_they_are(tmp_path: Path) -> None:
    jsonl(tmp_path / "jsonl" / "a.jsonl", TEXTS)
    jsonl(tmp_path / "jsonl" / "b.jsonl.gz", TEXTS * 50, gzip.open)
    write_parquet(tmp_path / "parquet" / "a.parquet", TEXTS)
    (tmp_path / "text").mkdir()
    for name in "ab":
        (tmp_path / "text" / name).write_text("\n".join(TEXTS))
    for kind in ("jsonl", "parquet", "text"):
        source = source_of(recipe_for(tmp_path / kind, format=kind), Path())
        told: list[int] = []
        assert list(source.records(told.append))
        assert sum(told) == source.size == sum(path.stat().st_size for path in (tmp_path / kind).iterdir())


def test_what_is_held_out_belongs_to_the_text_wherever_it_is(tmp_path: Path) -> None:
    recipe = {"format": "jsonl", "validation_share": 0.3}
    one = source_of(recipe_for(jsonl(tmp_path / "one.jsonl", TEXTS), **recipe), Path())
    other = source_of(recipe_for(jsonl(tmp_path / "other.jsonl", [*TEXTS[::-1], *TEXTS]), **recipe), Path())
    held_out = {record.text for record in one.records() if record and record.held_out}
    assert 30 <= len(held_out) <= 90
    assert all(record and record.held_out == (record.text in held_out) for record in other.records())


def test_damaged_lines_are_skipped_where_they_are(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", TEXTS[:4])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b'{"text": "cut\n', b'{"other": 1}\n', b"[]\n", b"\n", *lines[1:]]))
    assert texts_of(recipe_for(path, format="jsonl")) == [TEXTS[0], None, None, None, *TEXTS[1:4]]


def test_a_compressed_file_that_was_cut_is_damaged_at_its_end(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl.gz", TEXTS, gzip.open)
    path.write_bytes(path.read_bytes()[:-20])
    *read, last = texts_of(recipe_for(path, format="jsonl"))
    assert last is None
    assert 0 < len(read) <= len(TEXTS)
    assert [text for text in read if text is not None] == TEXTS[: sum(text is not None for text in read)]


def test_a_damaged_row_group_is_as_many_damaged_records(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", TEXTS)
    column = parquet.read_metadata(path).row_group(1).column(0)
    content = bytearray(path.read_bytes())
    start = column.dictionary_page_offset or column.data_page_offset
    content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(content)
    assert texts_of(recipe_for(path, format="parquet")) == [*TEXTS[:50], *[None] * 50, *TEXTS[100:]]


def test_a_damaged_read_is_counted_once_and_the_next_whole_one_is_found(tmp_path: Path) -> None:
    whole = b"@a\nACGT\n+\n@@@@\n"
    for damaged in (b"@b\nACG\n+\nIIII\n", b"@b\nACGT\nIIII\n", b"rubbish\n", b"@b\nAC\n"):
        (tmp_path / "a.fastq").write_bytes(whole + damaged + whole * 2)
        assert texts_of(recipe_for(tmp_path / "a.fastq", format="reads")) == ["ACGT", None, "ACGT", "ACGT"]
    (tmp_path / "a.fastq").write_bytes(whole + b"@b\nACGT\n+\n")
    assert texts_of(recipe_for(tmp_path / "a.fastq", format="reads")) == ["ACGT", None]


@pytest.mark.parametrize(
    ("content", "values", "message"),
    [
        (b'{"id": 1}\n', {"format": "jsonl"}, "data.field: .*: its first record has no text 'text', but 'id'"),
        (b"{}\n", {"format": "jsonl"}, "data.field: .*: its first record has no text 'text', but nothing"),
        (b"text", {"format": "parquet"}, "data.source: .*: is no parquet file: "),
        (b"", {"format": "parquet"}, "data.source: .*: is no parquet file: "),
        (b"ACGT", {"format": "reads"}, "data.source: .*: is neither FASTA nor FASTQ: "),
    ],
)
def test_a_file_of_another_kind_is_bad_input(
    tmp_path: Path, content: bytes, values: dict[str, Any], message: str
) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(BadInput, match=message) as raised:
        texts_of(recipe_for(tmp_path / "file", **values))
    assert "\n" not in str(raised.value)


def test_a_missing_column_or_one_of_no_text_is_bad_input(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", TEXTS)
    with pytest.raises(BadInput, match=r"data.field: .*: has no column 'content', but text, id$"):
        texts_of(recipe_for(path, format="parquet", field="content"))
    with pytest.raises(BadInput, match=r"data.field: .*: column 'id' holds no text, but int64$"):
        texts_of(recipe_for(path, format="parquet", field="id"))
    with pytest.raises(BadInput, match=r"data.field: hf:a/b has no 'content', but text, id$"):
        texts_of(recipe_for("hf:a/b", mirror=str(tmp_path), field="content"))


def test_a_mirror_that_is_not_there_or_has_no_such_split_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"data.mirror: .*nowhere: no such folder$"):
        texts_of(recipe_for("hf:a/b", mirror=str(tmp_path / "nowhere")))
    write_parquet(tmp_path / "train.parquet", TEXTS)
    with pytest.raises(BadInput, match=r"data.source: .* cannot be opened: .*other") as raised:
        texts_of(recipe_for("hf:a/b", mirror=str(tmp_path), split="other"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("file", ["/etc/passwd", "hf://datasets/somebody/else@1/a", "https://10.0.0.1/", "zip://a::/b"])
def test_a_data_set_of_the_hub_cannot_name_files_that_are_not_its_own(file: str) -> None:
    own = "hf://datasets/a/b@main/train.parquet"
    hub._check_files("hf:a/b", "a/b", {"train": [own]})
    with pytest.raises(
        BadInput, match=f"names '{file}' as its data; only data sets whose files are their own are read"
    ):
        hub._check_files("hf:a/b", "a/b", {"train": [own], "test": [file]})


@pytest.mark.parametrize(
    ("missing", "values"), [("pyarrow", {"format": "parquet"}), ("datasets", {"source": "hf:a/b"})]
)
def test_a_package_that_is_missing_is_named_with_how_to_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, values: dict[str, Any]
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    real = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name.partition(".")[0] == missing:
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadInput, match=rf'with {missing}, which is missing: pip install "prime_p2p\[data\]"$'):
        texts_of(DataRecipe.model_validate({"source": str(tmp_path / "file")} | values))
