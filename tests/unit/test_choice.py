"""Which snapshot a joining peer takes."""

from __future__ import annotations

from collections.abc import Sequence

from prime_p2p.state.choice import choose
from prime_p2p.state.messages import Offers


def digest(step: int, branch: str = "a") -> bytes:
    return f"{branch}{step}".encode().ljust(32, b".")


def holder(snapshots: Sequence[tuple[int, bytes]], first: int, last: int, branch: str = "a") -> Offers:
    """A peer that knows the states of these outer steps, and is at the last one."""
    history = [digest(step, branch) for step in range(first, last + 1)]
    steps, digests = [step for step, _ in snapshots], [snapshot for _, snapshot in snapshots]
    return Offers(snapshots=digests, steps=steps, first=first, history=history)


def joiner(step: int, branch: str = "a") -> Offers:
    return Offers(snapshots=[digest(step, branch)], steps=[step], first=0, history=[])


def at(step: int, branch: str = "a") -> tuple[int, bytes]:
    return step, digest(step, branch)


def test_the_snapshot_that_most_give_goes_before_a_newer_one() -> None:
    offers = {"one": holder([at(9), at(10)], 0, 10), "two": holder([at(9)], 0, 10)}
    assert choose(offers, digest(10), reach=8) == [digest(9), digest(10)]


def test_those_who_are_still_fetching_count_as_givers_but_have_no_say() -> None:
    offers = {"one": holder([at(9), at(10)], 0, 10), "two": joiner(9), "three": joiner(8, "b"), "four": joiner(8, "b")}
    assert choose(offers, digest(10), reach=8) == [digest(9), digest(10)]


def test_a_download_that_was_begun_goes_first() -> None:
    offers = {"one": holder([at(9), at(10)], 0, 10), "two": holder([at(10)], 0, 10)}
    assert choose(offers, digest(10), reach=8, begun={digest(9)}) == [digest(9), digest(10)]


def test_a_snapshot_that_the_others_know_nothing_of_is_not_taken() -> None:
    liar = Offers(snapshots=[digest(9, "x")], steps=[9], first=9, history=[digest(9, "x"), digest(10)])
    offers = {"liar": liar, "one": holder([at(10)], 0, 10), "two": holder([], 0, 10)}
    assert choose(offers, digest(10), reach=8) == [digest(10)]


def test_a_peer_on_another_lineage_has_no_say() -> None:
    others = {f"fork-{number}": holder([at(10, "b")], 0, 10, "b") for number in range(3)}
    offers = {"one": holder([at(10)], 0, 10), **others}
    assert choose(offers, digest(10), reach=8) == [digest(10)]


def test_a_peer_that_came_later_has_no_say_about_what_was_before() -> None:
    offers = {"old": holder([at(8)], 0, 10), "one": holder([], 10, 10), "two": holder([], 10, 10)}
    assert choose(offers, digest(10), reach=8) == [digest(8)]


def test_peers_that_have_gone_on_still_know_the_state_that_was_asked_about() -> None:
    assert choose({"one": holder([at(12)], 5, 12)}, digest(10), reach=8) == [digest(12)]


def test_a_snapshot_that_no_journal_will_lead_on_from_is_not_taken() -> None:
    offers = {"one": holder([at(1), at(2)], 0, 10)}
    assert choose(offers, digest(10), reach=8) == [digest(2)]


def test_steps_and_digests_that_do_not_match_in_number_are_no_harm() -> None:
    odd = Offers(snapshots=[digest(10), digest(9)], steps=[10], first=10, history=[digest(10)])
    assert choose({"odd": odd}, digest(10), reach=8) == [digest(10)]
    assert choose({}, digest(10), reach=8) == []
