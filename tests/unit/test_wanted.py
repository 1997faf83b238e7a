"""The queue of pieces that all streams of a download take from."""

from __future__ import annotations

import asyncio

from prime_p2p.state.wanted import Wanted

ALL = frozenset(range(4))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def take_all(wanted: Wanted, peer: str) -> list[int]:
    taken = []
    while (index := wanted.take(peer, ALL, patience=1.0)) is not None:
        taken.append(index)
    return taken


def test_each_piece_is_asked_for_once() -> None:
    wanted = Wanted(ALL, Clock())
    first = wanted.take("a", ALL, 1.0)
    assert first is not None
    assert sorted([first, *take_all(wanted, "b")]) == [0, 1, 2, 3]
    assert take_all(wanted, "a") == []


def test_a_peer_is_asked_only_for_what_it_has() -> None:
    wanted = Wanted(ALL, Clock())
    assert wanted.take("a", {2}, 1.0) == 2
    assert wanted.take("a", {2}, 1.0) is None


def test_what_a_lost_peer_was_asked_for_is_asked_for_elsewhere() -> None:
    wanted = Wanted(ALL, Clock())
    assert len(take_all(wanted, "a")) == 4
    wanted.give_back("a")
    assert sorted(take_all(wanted, "b")) == [0, 1, 2, 3]


def test_a_late_piece_is_asked_for_again_at_one_other_peer_and_the_latest_one_first() -> None:
    clock = Clock()
    wanted = Wanted([0, 1], clock)
    oldest = wanted.take("slow", ALL, 1.0)
    clock.now = 0.5
    take_all(wanted, "slow")
    assert wanted.take("fast", ALL, 1.0) is None
    clock.now = 1.2
    assert wanted.take("fast", ALL, 1.0) == oldest
    assert wanted.take("fast", ALL, 1.0) is None
    clock.now = 9.0
    assert wanted.take("slow", ALL, 1.0) is None
    assert wanted.take("third", {oldest}, 1.0) is None


def test_a_piece_that_two_were_asked_for_stays_asked_for_when_one_is_lost() -> None:
    clock = Clock()
    wanted = Wanted([0], clock)
    wanted.take("a", ALL, 1.0)
    clock.now = 2.0
    wanted.take("b", ALL, 1.0)
    wanted.give_back("a")
    assert wanted.take("c", ALL, 1.0) is None
    wanted.give_back("b")
    assert wanted.take("c", ALL, 1.0) == 0


def test_the_end_is_when_every_piece_is_there_however_often_it_came() -> None:
    wanted = Wanted([0, 1], Clock())
    take_all(wanted, "a")
    wanted.done(0)
    wanted.done(0)
    assert (wanted.left, wanted.finished.is_set()) == (1, False)
    wanted.give_back("a")
    assert take_all(wanted, "b") == [1]
    wanted.done(1)
    assert (wanted.left, wanted.finished.is_set()) == (0, True)
    assert Wanted([], Clock()).finished.is_set()


def test_a_peer_that_has_only_what_is_here_is_known() -> None:
    wanted = Wanted([0, 1], Clock())
    assert not wanted.disjoint({0})
    wanted.done(0)
    assert wanted.disjoint({0})
    assert wanted.disjoint(set())
    assert not wanted.disjoint({0, 1})


def test_who_waits_hears_of_a_change() -> None:
    async def main() -> None:
        wanted = Wanted([0, 1], Clock())
        take_all(wanted, "a")
        waiting = asyncio.ensure_future(wanted.change(60))
        await asyncio.sleep(0)
        assert not waiting.done()
        wanted.give_back("a")
        await asyncio.wait_for(waiting, 10)
        await wanted.change(0)

    asyncio.run(main())
