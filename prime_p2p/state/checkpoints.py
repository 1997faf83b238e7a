"""The newest checkpoints of a peer on its disk, in whatever state the last crash left them.

One folder a checkpoint, ``000017-step-42``: the seventeenth that was saved, at outer step 42. The newest is the one
saved last: a peer that moves to another lineage may go back to an earlier outer step. Training goes on
while one is written, see ``saver.py``.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prime_p2p.errors import BadInput
from prime_p2p.long_work import Advance, Watch, ignore, unwatched
from prime_p2p.outer.state import OuterState
from prime_p2p.state import checkpoint as files
from prime_p2p.state import tensor_file
from prime_p2p.state.checkpoint import Checkpoint

log = logging.getLogger(__name__)

_NAME = re.compile(r"(\d{6,})-step-\d+")


@dataclass(frozen=True)
class Draft:
    """A checkpoint that is being written, in a folder that becomes ``folder`` when it is whole."""

    folder: Path
    numbers: files.Numbers
    outer: OuterState

    @property
    def partial(self) -> Path:
        return self.folder.with_suffix(".partial")

    @property
    def bytes_of_outer(self) -> int:
        return self.outer.anchor.nbytes + self.outer.momentum.nbytes

    def remove(self) -> None:
        shutil.rmtree(self.partial, ignore_errors=True)


@contextmanager
def _removed_on_failure(draft: Draft) -> Iterator[None]:
    try:
        yield
    except BaseException:
        draft.remove()
        raise


class Checkpoints:
    """The newest ``keep`` checkpoints in ``directory``, which belongs to one peer process at a time."""

    def __init__(self, directory: Path, keep: int = 2, threads: int = 1) -> None:
        """``threads`` is how many the hashing of a loaded state, and its later outer steps, may use."""
        self.directory = directory
        self._keep = keep
        self._threads = threads
        self._damaged: set[Path] = set()

    def save(self, checkpoint: Checkpoint, watch: Watch = unwatched) -> Path:
        """Write a checkpoint, on the disk when this returns, and remove what is too old then; returns its folder.

        Nothing may change it meanwhile. A crash at any moment leaves the older checkpoints whole. Raises OSError, with
        nothing changed, where it cannot be written.
        """
        draft = self.begin(checkpoint, watch)
        with watch(f"writing the state of outer step {draft.numbers.step}", draft.bytes_of_outer) as advance:
            self.write_outer(draft, advance)
            return self.complete(draft)

    def begin(self, checkpoint: Checkpoint, watch: Watch = unwatched) -> Draft:
        """The first part of ``save``: from here on, only the outer state must stay as it is."""
        numbers, tensors = files.numbers_of(checkpoint)
        self.directory.mkdir(parents=True, exist_ok=True)
        for left_over in self.directory.glob("*.partial"):
            shutil.rmtree(left_over)
        older = self.folders()
        number = _number(older[-1]) + 1 if older else 1
        draft = Draft(self.directory / f"{number:06d}-step-{numbers.step}", numbers, checkpoint.outer)
        with _removed_on_failure(draft):
            draft.partial.mkdir()
            with watch(f"saving a checkpoint at outer step {numbers.step}", tensor_file.size_of(tensors)) as advance:
                files.write_local(draft.partial, tensors, advance)
        return draft

    @staticmethod
    def write_outer(draft: Draft, advance: Advance = ignore) -> None:
        """The second part: from here on, nothing needs to stay as it is."""
        with _removed_on_failure(draft):
            files.write_outer(draft.partial, draft.outer, advance)

    def complete(self, draft: Draft) -> Path:
        """The last part, which waits for the disk."""
        with _removed_on_failure(draft):
            files.write_numbers(draft.partial, draft.numbers)
        older = self.folders()
        draft.partial.rename(draft.folder)
        files.sync(self.directory)
        self._remove_all_but_the_newest([*older, draft.folder])
        return draft.folder

    def _remove_all_but_the_newest(self, folders: list[Path]) -> None:
        """A damaged one must not take the place of a whole one. What cannot be removed now can the next time."""
        damaged = [folder for folder in folders if folder in self._damaged]
        whole = [folder for folder in folders if folder not in self._damaged]
        for old in [*damaged, *whole[: -self._keep]]:
            try:
                # Renamed first: a folder that is half removed must not look like a checkpoint.
                shutil.rmtree(old.rename(old.with_suffix(".partial")))
            except OSError as error:
                log.warning("the old checkpoint %s cannot be removed: %s", old, error)

    def load_newest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, None where there is none; each damaged one on the way is logged.

        Raises NewerVersion where a newer version of this program has written it: what follows would remove it.
        """
        for folder in reversed(self.folders()):
            checkpoint = self.load(folder)
            if checkpoint is not None:
                return checkpoint
        return None

    def load(self, folder: Path) -> Checkpoint | None:
        """The checkpoint in one of ``folders``; None where it is damaged, which is logged. Raises NewerVersion."""
        try:
            return files.read(folder, self._threads)
        except files.DAMAGED as error:
            log.warning("checkpoint %s cannot be used: %s", folder, " ".join(str(error).split()))
            self._damaged.add(folder)
            return None

    def folders(self) -> list[Path]:
        """The folders of the checkpoints, oldest first."""
        if not self.directory.is_dir():
            return []
        names = [name for name in os.listdir(self.directory) if _NAME.fullmatch(name)]
        return sorted((self.directory / name for name in names), key=_number)


def of_peer(folder: Path) -> Checkpoints:
    """The checkpoints in the folder of a peer, for others to read.

    Raises:
        BadInput: There are none.
    """
    checkpoints = Checkpoints(folder / "checkpoints")
    if not checkpoints.folders():
        inside = [path.parent for path in sorted(folder.glob("*/checkpoints"))]
        such_as = f", such as {inside[0]}" if inside else ""
        raise BadInput(f"{folder}: no checkpoint in there; give the folder of a peer{such_as}")
    return checkpoints


def _number(folder: Path) -> int:
    return int(folder.name.partition("-")[0])
