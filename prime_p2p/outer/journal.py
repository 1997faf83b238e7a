"""The journal: the last updates of a lineage on disk, from which others replay the outer steps they missed.

One file an update: ``000000000041.update`` leads from outer step 41 to 42. A file is a header of fixed size (magic, the
entry, the digest of the update; then the blake3 of all these), the scales and the values. The magic tells the codec.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from prime_p2p.allreduce.codec import BlockVector, wire_bytes

log = logging.getLogger(__name__)

_MAGIC_OF = {8: b"prime-p2p journal v1", 4: b"prime-p2p journal v2"}  # by the bits of the update
_BITS_OF = {magic: bits for bits, magic in _MAGIC_OF.items()}
_FIELDS = struct.Struct("<20sQ32s32sQQ32s")
_HASH_BYTES = 32
_HEAD_BYTES = _FIELDS.size + _HASH_BYTES


@dataclass(frozen=True)
class JournalEntry:
    """An update that led from one state to the next: ``tokens`` were contributed to it, it has ``n`` elements.

    ``bits`` are those of its levels, as in ``BlockVector``.
    """

    step_before: int
    digest_before: bytes  # 32 bytes
    digest_after: bytes  # 32 bytes
    tokens: int
    n: int
    bits: int = 8

    def follows(self, other: JournalEntry) -> bool:
        """Whether this update applies to the state that the other one leads to."""
        return self.step_before == other.step_before + 1 and self.digest_before == other.digest_after


class Journal:
    """The last updates of one lineage, in ``directory``: ``length`` of them for others, ``keep`` for this peer's own
    restart where that is more.

    Any thread may read while one appends. An update that is torn or damaged is removed with one log line, and is then
    no part of the journal. Other files in the directory are left alone.
    """

    def __init__(self, directory: Path, length: int = 16, keep: int = 0) -> None:
        """Opens the journal that the directory holds, creating the directory; OSError where that is impossible."""
        self.length = length
        self._directory = directory
        self._keep = max(length, keep)
        self._lock = threading.Lock()
        self._entries: dict[int, JournalEntry] = {}
        directory.mkdir(parents=True, exist_ok=True)
        for left_over in directory.glob("*.partial"):
            left_over.unlink()
        for path in sorted(directory.glob("*.update")):
            try:
                with open(path, "rb") as file:
                    entry, _ = _read_head(file)
                if path != self._path(entry.step_before):
                    raise ValueError(f"it is the update of outer step {entry.step_before}")
            except (OSError, ValueError) as error:
                _remove(path, error)
            else:
                self._entries[entry.step_before] = entry

    def append(self, entry: JournalEntry, update: BlockVector) -> None:
        """Keep an update, and of the others only those that lead to it without a gap, ``keep`` in all.

        Nothing is synced: a file that a power failure tears is found out by its hashes, and other peers have it too.
        Raises OSError, with the journal as before, where the file cannot be written, and ValueError where the entry is
        one of another length or codec.
        """
        if (entry.n, entry.bits) != (update.n, update.bits):
            raise ValueError(
                f"an entry for {entry.n} elements of {entry.bits} bits, an update of {update.n} of {update.bits}"
            )
        path = self._path(entry.step_before)
        temporary = path.with_suffix(".partial")
        try:
            with open(temporary, "wb") as file:
                file.write(_head(entry, update))
                for buffer in update.buffers():
                    file.write(buffer)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        with self._lock:
            kept = {one.step_before: one for one in self._chain_to(entry)[-self._keep :]}
            # First the removals: a crash in between must not leave updates of an abandoned lineage behind the new one.
            for step in self._entries.keys() - kept.keys():
                self._path(step).unlink(missing_ok=True)
            os.replace(temporary, path)
            self._entries = kept

    def entries(self) -> list[JournalEntry]:
        """All updates, oldest first."""
        with self._lock:
            return [self._entries[step] for step in sorted(self._entries)]

    def path_from(self, step: int, digest: bytes) -> list[JournalEntry]:
        """The updates that lead from this state to the newest one, in order; [] where they are not all here."""
        with self._lock:
            if step not in self._entries:
                return []
            path = [entry for entry in self._chain_to(self._entries[max(self._entries)]) if entry.step_before >= step]
        return path if (path[0].step_before, path[0].digest_before) == (step, digest) else []

    def history_of(self, step: int, digest: bytes) -> dict[int, bytes]:
        """The digests of this state and of those that led to it, as far back as the updates are here, by outer step."""
        history = {step: digest}
        for entry in reversed(self.entries()):
            if (entry.step_before + 1, entry.digest_after) != (step, digest):
                break
            step, digest = entry.step_before, entry.digest_before
            history[step] = digest
        return history

    def read(self, step_before: int) -> tuple[JournalEntry, BlockVector]:
        """The update (read-only) that leads on from this outer step, checked against its hashes.

        Raises KeyError where the journal has none, and where it was damaged and is now removed.
        """
        path = self._path(step_before)
        with self._lock:
            entry = self._entries[step_before]
            file = open(path, "rb")  # noqa: SIM115 -- opened under the lock, read without it
        with file:
            try:
                found, update_digest = _read_head(file)
                update = BlockVector.over(found.n, file.read(), found.bits)
                if found != entry or update.digest() != update_digest:
                    raise ValueError("its bytes are not those that were written")
            except (OSError, ValueError) as error:
                self._forget(entry, error)
                raise KeyError(step_before) from error
        return entry, update

    def _forget(self, entry: JournalEntry, error: Exception) -> None:
        with self._lock:
            if self._entries.get(entry.step_before) is entry:
                del self._entries[entry.step_before]
                _remove(self._path(entry.step_before), error)

    def _chain_to(self, entry: JournalEntry) -> list[JournalEntry]:
        """The entries that lead to this one without a gap, and itself, in order."""
        chain = [entry]
        while (before := self._entries.get(chain[-1].step_before - 1)) and chain[-1].follows(before):
            chain.append(before)
        return chain[::-1]

    def _path(self, step_before: int) -> Path:
        return self._directory / f"{step_before:012d}.update"


def update_files(directory: Path) -> list[Path]:
    """The files of a journal, oldest update first. Nothing is changed, as opening a ``Journal`` does."""
    return sorted(directory.glob("*.update"))


def read_update(path: Path) -> tuple[JournalEntry, BlockVector]:
    """The update (read-only) in one file of a journal. Raises OSError, and ValueError where it is damaged."""
    with open(path, "rb") as file:
        entry, update_digest = _read_head(file)
        update = BlockVector.over(entry.n, file.read(), entry.bits)
    if update.digest() != update_digest:
        raise ValueError("its bytes are not those that were written")
    return entry, update


def _head(entry: JournalEntry, update: BlockVector) -> bytes:
    fields = _FIELDS.pack(
        _MAGIC_OF[entry.bits],
        entry.step_before,
        entry.digest_before,
        entry.digest_after,
        entry.tokens,
        entry.n,
        update.digest(),
    )
    return fields + blake3(fields).digest()


def _read_head(file: BinaryIO) -> tuple[JournalEntry, bytes]:
    """The entry and the digest of its update. Raises ValueError where header or length show the file as damaged."""
    head = file.read(_HEAD_BYTES)
    fields = head[: _FIELDS.size]
    if len(head) < _HEAD_BYTES or blake3(fields).digest() != head[_FIELDS.size :]:
        raise ValueError("its header is damaged")
    magic, step_before, digest_before, digest_after, tokens, n, update_digest = _FIELDS.unpack(fields)
    bits = _BITS_OF.get(magic)
    if bits is None:
        raise ValueError("it is not an update of this version")
    if os.fstat(file.fileno()).st_size != _HEAD_BYTES + wire_bytes(n, bits):
        raise ValueError("it is not as long as its header says")
    return JournalEntry(step_before, digest_before, digest_after, tokens, n, bits), update_digest


def _remove(path: Path, error: Exception) -> None:
    log.warning("journal: %s is removed: %s", path.name, error)
    path.unlink(missing_ok=True)
