"""The flat vector of a model whose ranks have a shard of each parameter: rank 0 reads and writes all of it."""

from __future__ import annotations

from functools import partial

from prime_p2p.allreduce.codec import Float32
from prime_p2p.training.flat import FlatParameters
from prime_p2p.training.ranks.crew import Crew
from prime_p2p.training.ranks.part import Part
from prime_p2p.training.ranks.window import Window


class SharedParameters(FlatParameters):
    """The vector passes through the window, a piece at a time, to and from which each rank copies what it has."""

    def __init__(self, crew: Crew, part: Part, window: Window) -> None:
        super().__init__(part.trainer.model)
        self._crew = crew
        self._part = part
        self._window = window.array
        self.slice = len(window.array)
        self._held = range(0)  # the elements in the window

    def changed(self) -> None:
        """The ranks have changed their shards."""
        self._held = range(0)

    def read(self, start: int, out: Float32) -> None:
        done = 0
        while done < len(out):
            if start + done not in self._held:
                self._fetch(start + done)
            here = self._window[start + done - self._held.start : len(self._held)][: len(out) - done]
            out[done : done + len(here)] = here
            done += len(here)

    def write(self, start: int, values: Float32) -> None:
        for first in range(0, len(values), len(self._window)):
            piece = values[first : first + len(self._window)]
            self._window[: len(piece)] = piece
            begin, end = start + first, start + first + len(piece)
            self._crew.together(partial(self._part.write, begin, end), "write", start=begin, stop=end)
        self.changed()

    def _fetch(self, start: int) -> None:
        stop = min(self.n, start + len(self._window))
        self._crew.together(partial(self._part.read, start, stop), "read", start=start, stop=stop)
        self._held = range(start, stop)
