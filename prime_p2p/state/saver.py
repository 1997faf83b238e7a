"""Saving beside training, without a copy in memory.

What the next inner step changes (the inner optimizer's state, above all) is handed to the system's cache of files
before training goes on. What stays as it is until the next outer step is written while it does, in a thread that waits
for the disk.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path

from prime_p2p.errors import PrimeError
from prime_p2p.long_work import Watch, unwatched
from prime_p2p.outer.state import Hold
from prime_p2p.state.checkpoint import Checkpoint
from prime_p2p.state.checkpoints import Checkpoints, Draft

DISK_DEADLINE = 600.0  # seconds for the last checkpoint but one to reach the disk at the end


class Saver:
    """Writes checkpoints, one at a time. What goes wrong is said through ``report``, one line each.

    All calls come from the thread that trains, and so do those of ``report``.
    """

    def __init__(self, checkpoints: Checkpoints, report: Callable[[str], None], watch: Watch = unwatched) -> None:
        self._checkpoints = checkpoints
        self._watch = watch
        self._report = report
        self._writing: threading.Thread | None = None
        self._step = 0
        self._failures: queue.SimpleQueue[str] = queue.SimpleQueue()

    def begin(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, most of it in the background; not where the one before is still being written."""
        self.poll()
        step = checkpoint.outer.step
        if self._writing is not None:
            self._report(f"no checkpoint at outer step {step}: that of outer step {self._step} is still being written")
            return
        hold = checkpoint.outer.hold()
        try:
            draft = self._checkpoints.begin(checkpoint, self._watch)
            thread = threading.Thread(target=self._write, args=(draft, hold), name="checkpoint", daemon=True)
            thread.start()
        except (OSError, MemoryError, RuntimeError) as error:  # the last one of torch, or for a thread too many
            hold.release()
            self._report(f"no checkpoint at outer step {step}: {str(error).splitlines()[0]}")
            return
        except BaseException:
            hold.release()
            raise
        self._writing, self._step = thread, step

    def poll(self) -> None:
        """Report what has gone wrong in the background since the last call."""
        if self._writing is not None and not self._writing.is_alive():
            self._writing.join()
            self._writing = None
        while not self._failures.empty():
            self._report(self._failures.get())

    def finish(self) -> None:
        """Wait until nothing is being written any more. Raises PrimeError where the disk takes more than 10 minutes."""
        if self._writing is not None:
            self._writing.join(DISK_DEADLINE)
            if self._writing.is_alive():
                raise PrimeError(
                    f"the checkpoint of outer step {self._step} has not reached {self._checkpoints.directory} after "
                    f"{DISK_DEADLINE:.0f} s; look at that disk"
                )
        self.poll()

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, on the disk when this returns. Raises PrimeError where that is impossible."""
        self.finish()
        try:
            return self._checkpoints.save(checkpoint, self._watch)
        except OSError as error:
            raise PrimeError(
                f"the checkpoint of outer step {checkpoint.outer.step} cannot be written: {error}; "
                "the ones before it are as they were"
            ) from error

    def save_if_possible(self, checkpoint: Checkpoint) -> None:
        """``save``, where something else went wrong already: that it is impossible is only reported."""
        try:
            self.save(checkpoint)
        except PrimeError as error:
            self._report(str(error))

    def _write(self, draft: Draft, hold: Hold) -> None:
        try:
            what = f"writing the state of outer step {draft.numbers.step}"
            with self._watch(what, draft.bytes_of_outer, aside=True) as advance:
                with hold:
                    self._checkpoints.write_outer(draft, advance)
                if hold.broken:
                    draft.remove()
                    raise OSError("the disk was so slow that the next outer step came first")
                self._checkpoints.complete(draft)
        except (OSError, MemoryError) as error:  # a full disk, say: the older ones are whole
            self._failures.put(f"no checkpoint at outer step {draft.numbers.step}: {error}")
