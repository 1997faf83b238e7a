"""What every test begins with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings

from prime_p2p.long_work import Advance
from prime_p2p.network import dropped

# How long an example takes says something of the machine, not of the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def _nothing_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test before this one has had a line of the log, or counted."""
    fresh = dropped.Dropped()
    monkeypatch.setattr(dropped, "note", fresh.note)
    monkeypatch.setattr(dropped, "counts", fresh.counts)


@dataclass
class LongWork:
    """A piece of work as a ``long_work.Watch`` is told of it; ``done`` is what has been."""

    what: str
    total: int | None
    unit: str
    aside: bool
    done: int = 0


class Watched:
    """A ``long_work.Watch`` that keeps what it is told."""

    def __init__(self) -> None:
        self.works: list[LongWork] = []

    @contextmanager
    def __call__(
        self, what: str, total: int | None = None, unit: str = "bytes", *, aside: bool = False
    ) -> Iterator[Advance]:
        work = LongWork(what, total, unit, aside)
        self.works.append(work)

        def advance(count: int) -> None:
            work.done += count

        yield advance


@pytest.fixture
def watched() -> Watched:
    return Watched()
