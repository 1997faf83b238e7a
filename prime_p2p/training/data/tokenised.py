"""Tokens on the disk: what a source gives, tokenised once, and mapped into memory from then on.

A folder has a file of tokens and one of where each document ends, for either side, and ``progress.json``, which says
how far they are right. Whatever interrupts the making of it, the next one goes on from there. Peers of one machine may
share the folder: one makes it, the others wait.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from prime_p2p.errors import BadInput
from prime_p2p.long_work import Watch, ignore, unwatched
from prime_p2p.training.data.sources import Record, Source
from prime_p2p.training.data.tokenizer import Tokenizer, Tokens

SIDES = ("train", "validation")
SAVE_EVERY = 5.0  # seconds between two times that progress is on the disk
_AT_ONCE = 256  # records that are tokenised together, by all threads of the tokenizer
_PROGRESS = "progress.json"

Ends = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Documents:
    """Tokens of documents, one after the other; ``ends`` has for each of them the place after its last token."""

    tokens: Tokens
    ends: Ends


@dataclass
class Progress:
    """How far a folder is: ``records`` of the source are in it, ``damaged`` of them skipped."""

    records: int = 0
    damaged: int = 0
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SIDES, 0))
    documents: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SIDES, 0))
    complete: bool = False


def smallest_type(size: int) -> np.dtype[Any]:
    """What holds tokens below ``size``."""
    return np.dtype(np.uint8 if size <= 2**8 else np.uint16 if size <= 2**16 else np.uint32)


def tokenised(
    source: Source,
    tokenizer: Tokenizer,
    most: int,
    folder: Path,
    say: Callable[[str], None],
    watch: Watch = unwatched,
) -> tuple[dict[str, Documents], Progress]:
    """What ``folder`` holds of ``source``, made first where it is not complete; ``most`` records (0: all).

    ``say`` is told what happens on the way, ``watch`` how far it is. Raises BadInput where the source has no records,
    OSError where the folder cannot be used.
    """
    kind = smallest_type(tokenizer.size)
    progress = _read_progress(folder)
    if not progress.complete:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder, say):
            progress = _read_progress(folder)  # another peer may have made it meanwhile
            if not progress.complete:
                _make(source, tokenizer, most, _Writer(folder, kind, progress), say, watch)
    return {side: _mapped(folder, side, kind, progress) for side in SIDES}, progress


def _make(
    source: Source,
    tokenizer: Tokenizer,
    most: int,
    writer: _Writer,
    say: Callable[[str], None],
    watch: Watch,
) -> None:
    progress = writer.progress
    what = "tokenizing the data"
    with watch(what, most, "records") if most else watch(what, source.size) as advance, writer:
        records = source.records(ignore if most else advance)
        if most:
            records = itertools.islice(records, most)
        skipped = sum(1 for _ in itertools.islice(records, progress.records))
        if skipped:
            say(f"the first {skipped:,} records are tokenised already; going on")
        saved = time.monotonic()
        advance(skipped if most else 0)
        while several := list(itertools.islice(records, _AT_ONCE)):
            writer.add(several, tokenizer)
            advance(len(several) if most else 0)
            if time.monotonic() - saved >= SAVE_EVERY:
                writer.save()
                saved = time.monotonic()
        if progress.records == progress.damaged:
            what = f"all of its {progress.damaged} records are damaged" if progress.damaged else "holds no records"
            raise BadInput(f"data.source: {source.name}: {what}")
        progress.complete = True
        writer.save()
    if progress.damaged:
        say(f"{progress.damaged:,} of {progress.records:,} records of the data are damaged and left out")


class _Writer:
    """Appends to the files of a folder, from what ``progress`` says is right; owns them while it is entered."""

    def __init__(self, folder: Path, kind: np.dtype[Any], progress: Progress) -> None:
        self.progress = progress
        self._folder = folder
        self._kind = kind
        self._files: dict[str, tuple[IO[bytes], IO[bytes]]] = {}

    def __enter__(self) -> _Writer:
        self._stack = ExitStack()
        for side in SIDES:
            tokens, ends = _paths(self._folder, side)
            self._files[side] = (
                self._open(tokens, self.progress.tokens[side] * self._kind.itemsize),
                self._open(ends, self.progress.documents[side] * 8),
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _open(self, path: Path, size: int) -> IO[bytes]:
        """The file, cut to what is right of it."""
        file = self._stack.enter_context(path.open("ab"))
        file.truncate(size)
        return file

    def add(self, records: Sequence[Record | None], tokenizer: Tokenizer) -> None:
        """Append the tokens of these records."""
        whole = [record for record in records if record is not None]
        for record, tokens in zip(whole, tokenizer.encode([record.text for record in whole]), strict=True):
            side = "validation" if record.held_out else "train"
            into, ends = self._files[side]
            document = np.array([*tokens, tokenizer.end] if record.whole else list(tokens), self._kind)
            into.write(document.tobytes())
            self.progress.tokens[side] += len(document)
            self.progress.documents[side] += 1
            ends.write(np.int64(self.progress.tokens[side]).tobytes())
        self.progress.records += len(records)
        self.progress.damaged += len(records) - len(whole)

    def save(self) -> None:
        """Have what was added on the disk, and then say so."""
        for files in self._files.values():
            for file in files:
                file.flush()
                os.fsync(file.fileno())
        partial = self._folder / f"{_PROGRESS}.partial"
        with partial.open("w", encoding="utf-8") as written:
            json.dump(vars(self.progress), written)
            written.flush()
            os.fsync(written.fileno())
        os.replace(partial, self._folder / _PROGRESS)


def _read_progress(folder: Path) -> Progress:
    """That of a folder; the beginning where there is none, or none that can be read."""
    try:
        return Progress(**json.loads((folder / _PROGRESS).read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return Progress()


def _paths(folder: Path, side: str) -> tuple[Path, Path]:
    return folder / f"{side}.tokens", folder / f"{side}.ends"


def _mapped(folder: Path, side: str, kind: np.dtype[Any], progress: Progress) -> Documents:
    tokens, ends = _paths(folder, side)
    return Documents(
        _map(tokens, kind, progress.tokens[side]), _map(ends, np.dtype(np.int64), progress.documents[side])
    )


def _map(path: Path, kind: np.dtype[Any], size: int) -> npt.NDArray[Any]:
    if size == 0:  # which cannot be mapped
        return np.empty(0, kind)
    return np.memmap(path, kind, mode="r", shape=(size,))


@contextmanager
def _alone(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Keep other peers from making the same folder; where one does it, wait for it."""
    with (folder / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another peer on this machine tokenises the same data; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
