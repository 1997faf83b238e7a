"""The folder of a peer, which belongs to one peer at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prime_p2p.errors import BadInput

_LOCK = ".lock"


@contextmanager
def owned(directory: Path) -> Iterator[None]:
    """Make the folder, and keep other peers out of it as long as this one lives.

    Raises:
        BadInput: It cannot be written, or another peer has it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / _LOCK).open("a")
    except OSError as error:
        raise BadInput(f"folder {directory} cannot be written: {error.strerror}; give another one with --dir") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"folder {directory} is in use by another peer; give this one its own with --dir") from None
        yield


def in_use(directory: Path) -> bool:
    """Whether a peer has the folder at this moment. Nothing is written."""
    try:
        lock = (directory / _LOCK).open("rb")
    except OSError:  # no peer has ever been here, or it is not ours to look
        return False
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
