"""The state that this process has given to others, counted."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True)
class Given:
    """``snapshots`` counts the times that somebody took pieces of one, all of them or a few; ``bytes`` are those of
    pieces and of updates."""

    snapshots: int = 0
    bytes: int = 0

    def __sub__(self, before: Given) -> Given:
        return Given(self.snapshots - before.snapshots, self.bytes - before.bytes)


class _Counts:
    """Safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._so_far = Given()

    def note(self, sent: int, snapshots: int = 0) -> None:
        """So many bytes have been sent, and so many snapshots, or parts of them."""
        with self._lock:
            self._so_far = Given(self._so_far.snapshots + snapshots, self._so_far.bytes + sent)

    def so_far(self) -> Given:
        return self._so_far


_counts = _Counts()
note = _counts.note
so_far = _counts.so_far
