"""Pieces of a download on their way to a file, in a thread of its own: the download never waits for the disk."""

from __future__ import annotations

import logging
import queue
import threading

from prime_p2p.state.piece_file import PieceFile

logger = logging.getLogger(__name__)

KEEP_AFTER = 3.0  # seconds of a download that are not worth keeping: for a shorter one nothing is written at all
STOP_DEADLINE = 5.0  # seconds that the disk may take for the piece that is being written


class Backlog:
    """Writes pieces to ``file``, which has each of them from then on; one that cannot be written ends that for good.

    What is given to ``add`` must not change before it is written, or ``stop`` has returned True.
    """

    def __init__(self, file: PieceFile) -> None:
        self._file = file
        self._queue: queue.SimpleQueue[tuple[int, memoryview] | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="snapshot", daemon=True)
        self._thread.start()

    def add(self, index: int, data: memoryview) -> None:
        """Have a piece written that is known to be right."""
        self._queue.put((index, data))

    def stop(self) -> bool:
        """Write nothing more; False where the disk does not get done with what it was given."""
        self._stopped.set()
        self._queue.put(None)
        self._thread.join(STOP_DEADLINE)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._stopped.wait(KEEP_AFTER)
        while (piece := self._queue.get()) is not None and not self._stopped.is_set():
            try:
                self._write(*piece)
            except OSError as error:
                logger.warning("a download that breaks off will begin anew: its pieces cannot be kept: %s", error)
                return

    def _write(self, index: int, data: memoryview) -> None:
        self._file.write(index, data)
        self._file.have.add(index)
