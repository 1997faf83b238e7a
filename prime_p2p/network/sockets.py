"""A folder for the sockets between this process and its daemon, which nobody else can enter."""

import fcntl
import shutil
import tempfile
from pathlib import Path

_PREFIX = "prime-p2pd-"
_LOCK = "owner.lock"
_LONGEST_HOME = 50  # characters, so that the path of a socket stays within the 104 to 108 that systems allow


class SocketFolder:
    """A temporary folder that belongs to this process.

    A process that is killed leaves its folder behind; whoever makes the next one removes those whose owner is gone.
    """

    def __init__(self) -> None:
        home = tempfile.gettempdir()
        if len(home) > _LONGEST_HOME:
            home = "/tmp"
        _remove_orphans(Path(home))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=home))
        self._lock = (self.path / _LOCK).open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def close(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _remove_orphans(home: Path) -> None:
    for lock in home.glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            with lock.open("rb") as handle:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
        except OSError:  # it has an owner, or is somebody else's
            continue
