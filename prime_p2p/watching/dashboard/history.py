"""How fast a run was, and how many peers it had, since somebody began to watch it."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

MOST = 400  # samples; with more of them two neighbours become one


@dataclass(frozen=True)
class Sample:
    """A moment: ``at`` in unix seconds."""

    at: float
    tokens_per_second: float
    peers: float


class History:
    """Samples of a run, at least ``gap`` seconds apart, which grows as the history does."""

    def __init__(self, gap: float = 2.0) -> None:
        self.samples: list[Sample] = []
        self._gap = gap

    def add(self, sample: Sample) -> None:
        """Note a moment, unless it comes too soon after the one before."""
        if self.samples and sample.at - self.samples[-1].at < self._gap:
            return
        self.samples.append(sample)
        if len(self.samples) > MOST:
            self.samples = [_merged(*self.samples[place : place + 2]) for place in range(0, len(self.samples), 2)]
            self._gap *= 2


def _merged(*samples: Sample) -> Sample:
    return Sample(
        samples[-1].at,
        fmean(one.tokens_per_second for one in samples),
        fmean(one.peers for one in samples),
    )
