"""The records of a file, one after the other: lines of JSON, rows of a parquet file, reads of a sequencer.

A record that is damaged is None. A file that was compressed with gzip is read as what is in it. ``read`` is told of the
bytes of the file that were read.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prime_p2p.errors import BadInput
from prime_p2p.long_work import Advance, ignore

Records = Iterator[bytes | None]

_GZIP = b"\x1f\x8b"
_BUFFER = 2**17  # bytes of a file that are read at a time
_ROWS = 256  # of a parquet file that are decoded at a time
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)  # what gzip raises in the middle of a file


def json_lines(path: Path, field: str, read: Advance = ignore) -> Records:
    """The field of each line's object. Raises BadInput where the first object has none."""
    first = True
    for line in _lines(path, read):
        if line is not None and not line.strip():
            continue
        record = None if line is None else _json_object(line)
        text = None if record is None else record.get(field)
        if first and record is not None and not isinstance(text, str):
            raise BadInput(f"data.field: {path}: its first record has no text {field!r}, but {_listed(record)}")
        first = first and record is None
        yield text.encode("utf-8", "replace") if isinstance(text, str) else None


def parquet_rows(path: Path, column: str, read: Advance = ignore) -> Records:
    """The column of each row. A row group that cannot be read is as many damaged records.

    Raises:
        BadInput: pyarrow is not installed, the file is not one of parquet, or has no such column of text.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise BadInput(
            'data.format: parquet files are read with pyarrow, which is missing: pip install "prime_p2p[data]"'
        ) from None
    try:
        file = parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise BadInput(f"data.source: {path}: is no parquet file: {' '.join(str(error).split())[:200]}") from None
    with file:
        schema = file.schema_arrow
        if column not in schema.names:
            raise BadInput(f"data.field: {path}: has no column {column!r}, but {', '.join(schema.names[:10])}")
        kind = schema.field(column).type
        if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
            raise BadInput(f"data.field: {path}: column {column!r} holds no text, but {kind}")
        size = path.stat().st_size
        for group in range(file.num_row_groups):
            done = 0
            try:
                for batch in file.iter_batches(_ROWS, row_groups=[group], columns=[column]):
                    for text in batch.column(0).to_pylist():
                        done += 1
                        yield None if text is None else text.encode("utf-8", "replace")
            except (pyarrow.ArrowException, OSError):
                yield from [None] * (file.metadata.row_group(group).num_rows - done)
            read(size * (group + 1) // file.num_row_groups - size * group // file.num_row_groups)


def reads(path: Path, read: Advance = ignore) -> Records:
    """The bases of each read of a FASTA or FASTQ file (Cock et al., 2010, doi:10.1093/nar/gkp1137).

    A FASTQ record is four lines: a file whose sequences are wrapped is not read.

    Raises:
        BadInput: the file begins like neither.
    """
    lines = _lines(path, read)
    first = next(lines, b"")
    if first is None or first[:1] not in (b">", b"@"):
        raise BadInput(f"data.source: {path}: is neither FASTA nor FASTQ: it begins with neither '>' nor '@'")
    yield from _fasta(lines) if first[:1] == b">" else _fastq(itertools.chain([first], lines))


def _fasta(lines: Iterator[bytes | None]) -> Records:
    """Of the lines after the first header."""
    bases: list[bytes] = []
    for line in lines:
        if line is None:
            yield None
            return
        if line[:1] == b">":
            yield b"".join(bases) or None
            bases = []
        else:
            bases.append(line.strip())
    yield b"".join(bases) or None


def _fastq(lines: Iterator[bytes | None]) -> Records:
    """After a damaged record it goes on with the next four lines that are a whole one."""
    four: list[bytes | None] = []
    in_damage = False
    while True:
        four += itertools.islice(lines, 4 - len(four))
        if len(four) < 4 or None in four:
            break
        header, bases, separator, quality = (line.strip() for line in four if line is not None)
        if header[:1] == b"@" and separator[:1] == b"+" and len(bases) == len(quality) > 0:
            yield bases
            four, in_damage = [], False
            continue
        if not in_damage:
            yield None
        in_damage = True
        del four[0]
    if not in_damage and any(line is None or line.strip() for line in four):
        yield None


def _lines(path: Path, read: Advance) -> Iterator[bytes | None]:
    """The lines of a file; None where the rest of it is damaged."""
    with _opened(path, read) as file:
        try:
            yield from file
        except _DAMAGED:
            yield None


class _Counted(io.FileIO):
    """A file that tells how many bytes were read of it."""

    def __init__(self, path: Path, read: Advance) -> None:
        super().__init__(path)
        self._told = read

    def readinto(self, buffer: memoryview) -> int | None:  # type: ignore[override]
        count = super().readinto(buffer)
        self._told(count or 0)
        return count


@contextmanager
def _opened(path: Path, read: Advance) -> Iterator[io.BufferedIOBase]:
    with io.BufferedReader(_Counted(path, read), _BUFFER) as file:
        if file.peek(2)[:2] == _GZIP:
            with gzip.GzipFile(fileobj=file) as content:
                yield content
        else:
            yield file


def _json_object(line: bytes) -> dict[str, object] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _listed(record: dict[str, object]) -> str:
    return ", ".join(repr(key)[:40] for key in list(record)[:10]) or "nothing"
