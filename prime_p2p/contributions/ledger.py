"""The certificates that a peer keeps: one for each outer step, in a file of bounded size, the newest ones.

    u32 length | 8 bytes of hash | certificate          (big endian), again and again

What is given to ``add`` has been checked. Of two certificates of one outer step the later in the file counts. Nothing
is synced: a tear at the end of the file is found by its hash when it is read, and cut off; others have what was there.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from prime_p2p.swarm.certificate import MAX_CERTIFICATE, BadCertificate, Certificate

logger = logging.getLogger(__name__)

MOST_BYTES = 16 << 20
_HEAD = struct.Struct(">I8s")


@dataclass(frozen=True)
class _Place:
    """Where a certificate is in the file, and its id."""

    id: bytes
    offset: int
    size: int


class Ledger:
    """One for a file and a run; safe to use from any thread. Memory has only the place of each certificate."""

    def __init__(self, path: Path, run: str, most_bytes: int = MOST_BYTES) -> None:
        """Go on with what is in the file. Raises OSError where it cannot be read or written."""
        self._path = path
        self._run = run
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._places: dict[int, _Place] = {}
        self._end = 0
        self.oldest = 0
        """Certificates of earlier outer steps had to make room, and are not taken any more."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self._load(path.read_bytes())

    def _load(self, data: bytes) -> None:
        reasons: list[BadCertificate] = []
        for offset, body in _frames(data):
            self._end = offset + len(body)
            try:
                certificate = Certificate.from_bytes(body, self._run)
            except BadCertificate as reason:
                reasons.append(reason)
            else:
                self._places[certificate.group.step] = _Place(certificate.id, offset, len(body))
        if reasons:
            logger.warning("%d certificates in %s are of no use, at last: %s", len(reasons), self._path, reasons[-1])
        if self._end < len(data):
            logger.warning("%s is damaged at byte %d; what comes after it is dropped", self._path, self._end)
            os.truncate(self._path, self._end)

    def held(self, since: int = 0) -> dict[int, bytes]:
        """The ids of the certificates from this outer step on, by the step that they lead on from; oldest first."""
        with self._lock:
            return {step: self._places[step].id for step in sorted(step for step in self._places if step >= since)}

    def add(self, certificate: Certificate, *, ours: bool = False) -> bool:
        """Keep a certificate that was checked; False where there is one of its outer step, or it is too old.

        That of a commit of ours takes the place of another one: this peer knows that it is of the lineage it was on.
        Raises OSError, with the ledger as before, where it cannot be written.
        """
        step, body = certificate.group.step, certificate.to_bytes()
        with self._lock:
            if step in self._places and not ours:
                return False
            if self._end + _HEAD.size + len(body) > self._most_bytes:
                self.oldest = min(self._places, default=0)
                if step >= self.oldest:
                    self._drop_oldest()
            if step < self.oldest:
                return False
            with open(self._path, "r+b") as file:
                file.seek(self._end)
                file.write(_frame(body))
            self._places[step] = _Place(certificate.id, self._end + _HEAD.size, len(body))
            self._end += _HEAD.size + len(body)
        return True

    def read(self, steps: Iterable[int], most_bytes: int) -> list[bytes]:
        """The certificates of these outer steps that are here, as many of them as have room in so many bytes.

        Raises OSError where the file cannot be read.
        """
        found: list[bytes] = []
        with self._lock, open(self._path, "rb") as file:
            for step in steps:
                place = self._places.get(step)
                if place is None:
                    continue
                if (most_bytes := most_bytes - place.size) < 0:
                    break
                file.seek(place.offset)
                found.append(file.read(place.size))
        return found

    def _drop_oldest(self) -> None:
        """Write the file anew with the newest ones, in three quarters of the room."""
        left, kept = self._most_bytes * 3 // 4, {}
        partial = self._path.with_suffix(".partial")
        for step in sorted(self._places, reverse=True):
            left -= _HEAD.size + self._places[step].size
            if left < 0:
                break
            kept[step] = self._places[step]
        moved: dict[int, _Place] = {}
        end = 0
        with open(self._path, "rb") as file, open(partial, "wb") as anew:
            for step, place in sorted(kept.items()):
                file.seek(place.offset)
                anew.write(_frame(file.read(place.size)))
                moved[step] = _Place(place.id, end + _HEAD.size, place.size)
                end += _HEAD.size + place.size
        os.replace(partial, self._path)
        self._places, self._end, self.oldest = moved, end, min(moved, default=0)


def _frame(body: bytes) -> bytes:
    return _HEAD.pack(len(body), blake3(body).digest(8)) + body


def _frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Whole frames up to the first that is damaged: where the body of each begins, and the body."""
    at = 0
    while at + _HEAD.size <= len(data):
        size, hashed = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        body = data[at : at + size]
        if not 0 < size <= MAX_CERTIFICATE or len(body) < size or blake3(body).digest(8) != hashed:
            return
        yield at, body
        at += size
