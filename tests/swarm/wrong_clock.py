"""Runs a script on a machine whose clock is wrong by so many seconds.

wrong_clock.py SECONDS SCRIPT [ARGUMENT ...]
"""

from __future__ import annotations

import runpy
import sys
import time


class WrongClock:
    """Stands in for `time.time`; `set` sets it."""

    def __init__(self, ahead: float) -> None:
        self.ahead = ahead
        self._right = time.time

    def __call__(self) -> float:
        return self._right() + self.ahead

    def set(self, ahead: float) -> None:
        self.ahead = ahead


if __name__ == "__main__":
    seconds = float(sys.argv[1])
    del sys.argv[:2]
    time.time = WrongClock(seconds)
    runpy.run_path(sys.argv[0], run_name="__main__")
