"""Temporary folders that do not outlive this process, whichever way it ends."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import weakref
from pathlib import Path
from typing import BinaryIO

_PREFIX = "prime-p2p-"
_LOCK = "owner.lock"
_MEMORY = Path("/dev/shm")
_PATIENCE = 5.0  # seconds for the remover to go once it may

# A process that outlives us by a moment: it reads a pipe that only we hold, which our death closes however sudden, and
# then removes the folder. Requests to stop reach whole groups of processes; it leaves when we have left, not before.
# It says so once it no longer dies of them.
_REMOVER = 'trap "" HUP INT TERM; echo; exec >&-; read -r _; rm -rf -- "$1"'


class TemporaryFolder:
    """A folder that only this user can enter, and that is gone soon after the process that made it.

    What a remover could not do, being killed together with its owner, whoever makes the next folder does.
    """

    def __init__(self, longest_home: int | None = None, in_memory: bool = False) -> None:
        """Make one, in /tmp where the usual place has a path of more than ``longest_home`` characters; ``in_memory``
        asks for a file system in memory, where this user has one.

        Raises:
            OSError: There is no room for it, or no process to be had.
        """
        home = Path(tempfile.gettempdir())
        if longest_home is not None and len(str(home)) > longest_home:
            home = Path("/tmp")
        if in_memory and os.access(_MEMORY, os.W_OK | os.X_OK):
            home = _MEMORY
        _remove_orphans(home)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=home))
        try:
            lock = _locked(self.path / _LOCK)
            remover = subprocess.Popen(
                ["/bin/sh", "-c", _REMOVER, "sh", str(self.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
            assert remover.stdout is not None
            with remover.stdout as ready:
                ready.read()
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            raise
        self._remove = weakref.finalize(self, _remove, self.path, lock, remover)

    def close(self) -> None:
        """Remove the folder with all that is in it. Not closed, it goes with this object. May be called again."""
        self._remove()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()


def _locked(path: Path) -> BinaryIO:
    """A file that is locked from the moment it has its name, so that nobody takes its folder for an orphan."""
    unnamed = path.with_suffix(".new")
    lock = unnamed.open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    unnamed.rename(path)
    return lock


def _remove(folder: Path, lock: BinaryIO, remover: "subprocess.Popen[bytes]") -> None:
    shutil.rmtree(folder, ignore_errors=True)
    lock.close()
    if remover.stdin is not None:
        remover.stdin.close()
    try:
        remover.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        remover.kill()
        remover.wait()


def _remove_orphans(home: Path) -> None:
    for lock in home.glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError), lock.open("rb") as handle:  # it has an owner, or is somebody else's
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
