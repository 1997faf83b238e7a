"""A copy of an outer state, outside this process's memory, to go back to when an outer step turns out a wrong one."""

from __future__ import annotations

from pathlib import Path

from prime_p2p.outer.state import OuterState
from prime_p2p.state.piece_file import Contents, PieceFile, part_of


class Undo:
    """Keeps what ``state`` is now in a nameless file in ``directory``. Raises OSError where that cannot be written."""

    def __init__(self, state: OuterState, directory: Path) -> None:
        self._state = state
        with state.lock:
            contents = Contents(state.step, state.tokens, len(state.anchor), list(state.pieces))
            self._file = PieceFile.nameless(directory, contents)
            for index in range(len(contents.hashes)):
                self._file.write(index, part_of((state.anchor, state.momentum), contents, index))

    def go_back(self) -> None:
        """Make the state again what it was. Raises OSError where the file cannot be read."""
        contents = self._file.contents
        self._state.put_back(contents.step, contents.tokens, self._file.load_into)
