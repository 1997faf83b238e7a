"""What came of the runs so far: a file with one JSON line for each."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, TypeAdapter

from scripts.convergence.arms import Setting

Loss = Annotated[float, BeforeValidator(lambda value: math.inf if value is None else value)]  # JSON has no infinity


@dataclass(frozen=True)
class Outcome:
    """What came of one run: nats a token on files that no peer trains on, infinite where training diverged."""

    loss: Loss
    curve: tuple[tuple[int, Loss], ...]  # inner steps of a peer, and the loss after them
    sent: int  # bytes that a peer uploads in the whole run
    seconds: float  # of processor time
    note: str = ""


@dataclass(frozen=True)
class _Line:
    setting: Setting
    outcome: Outcome


_LINE = TypeAdapter(_Line)


class Results:
    """What was found, by setting. The file is as good as before when the process is killed over it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found = {line.setting: line.outcome for line in self._lines()}

    def add(self, setting: Setting, outcome: Outcome) -> None:
        """Keep the outcome of a run; it is on the disk when this returns."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.truncate(self._whole())
            file.write(_LINE.dump_json(_Line(setting, outcome)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.found[setting] = outcome

    def _lines(self) -> Iterator[_Line]:
        if self._path.exists():
            for line in self._path.read_bytes()[: self._whole()].splitlines():
                yield _LINE.validate_json(line)

    def _whole(self) -> int:
        """Bytes of the lines that were written to their ends."""
        return self._path.read_bytes().rfind(b"\n") + 1
