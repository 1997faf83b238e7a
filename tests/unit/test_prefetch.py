"""Batches come in order from a thread of their own, which ends with its owner."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from prime_p2p.training.batch import Batch
from prime_p2p.training.data.assignment import Place
from prime_p2p.training.data.prefetch import AHEAD, GivenUp, Prefetch
from prime_p2p.training.data.reading import Reading


class Source:
    """Batches that are their own positions; held back until ``open`` is set."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.open = threading.Event()
        self.open.set()
        self.enough = threading.Event()

    def make(self, position: int) -> Batch:
        self.open.wait()
        if position < 0:
            raise OSError("the disk is gone")
        self.made.append(position)
        if len(self.made) > AHEAD:
            self.enough.set()
        return Batch(torch.full((1, 2), position))


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def ahead(source: Source, said: list[str]) -> Iterator[Prefetch]:
    prefetch = Prefetch(source.make, 10, said.append)
    prefetch.start()
    yield prefetch
    source.open.set()
    prefetch.close()
    assert "prefetch" not in {thread.name for thread in threading.enumerate()}


def get(ahead: Prefetch, position: int) -> int:
    return int(ahead.get(position).tokens[0, 0])


def test_whoever_waits_for_a_batch_can_be_told_to_wait_no_more(ahead: Prefetch, source: Source) -> None:
    source.open.clear()
    teller = threading.Timer(0.05, ahead.give_up)
    teller.start()
    with pytest.raises(GivenUp, match="told to stop"):
        ahead.get(0)
    teller.join()


def test_nobody_waits_for_batches_that_nothing_makes(source: Source) -> None:
    with pytest.raises(RuntimeError, match="start comes first"):
        Prefetch(source.make, 10, print).get(0)


def test_batches_come_in_order_and_are_made_ahead_but_not_without_end(ahead: Prefetch, source: Source) -> None:
    assert [get(ahead, position) for position in (30, 40, 50)] == [30, 40, 50]
    assert source.enough.wait(10)
    assert get(ahead, 60) == 60
    assert source.made[:5] == [30, 40, 50, 60, 70]
    assert len(source.made) <= 4 + AHEAD + 1


def test_after_a_jump_what_was_made_for_the_old_place_is_dropped(ahead: Prefetch) -> None:
    asked = [0, 10, 500, 510, 20, 20, 30]
    assert [get(ahead, position) for position in asked] == asked


def test_an_error_comes_up_where_the_batch_is_asked_for(ahead: Prefetch) -> None:
    assert get(ahead, 0) == 0
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is gone"):
            ahead.get(-10)


def test_who_waits_for_data_says_so(
    ahead: Prefetch, source: Source, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prime_p2p.training.data.prefetch.STALL", 0.01)
    source.open.clear()

    def open_it(text: str) -> None:
        said.append(text)
        source.open.set()

    ahead._say = open_it
    assert get(ahead, 0) == 0
    assert said == [
        "training waits for data: nothing to read for 0 s",
        "training goes on: there is data again after 0 s",
    ]


class Numbers:
    """An order in which a batch has two sequences, and a new state begins at its own place."""

    batch_size = 2
    sequences = 0

    def position(self, place: Place, drawn: int) -> int:
        return place.contributed + place.read

    def at(self, position: int) -> Batch:
        return Batch(torch.full((2, 2), position))


def test_a_reading_accounts_for_what_it_has_read_in_ranges() -> None:
    with Reading(Numbers(), lambda text: None) as reading:
        for contributed, read in ((0, 0), (0, 2), (0, 4), (100, 0), (100, 2)):
            batch = reading.next(Place(contributed, 1, (), 6, read))
            assert batch.tokens[0, 0] == contributed + read
        assert reading.drawn == 5
        assert reading.take_ranges() == [[0, 6], [100, 104]]
        reading.next(Place(100, 1, (), 6, 4))
        assert reading.take_ranges() == [[104, 106]]
