"""What is said of a peer's own history when another lineage takes its place."""

from __future__ import annotations

from blake3 import blake3

from prime_p2p.state.fork import Held, abandoned


def held(steps: range, *, forked_at: int = 10**6, tokens: int = 0) -> Held:
    """A state whose history goes over ``steps``, on a lineage of its own after outer step ``forked_at``."""
    history = {step: blake3(f"{step} {step > forked_at}".encode()).digest() for step in steps}
    return Held(steps[-1], tokens or steps[-1] * 100, history)


def test_a_fork_is_told_with_what_is_given_up_and_why() -> None:
    said = abandoned(held(range(21), forked_at=17), held(range(5, 25)))
    assert said is not None
    assert "from outer step 20 (" in said
    assert "lineage of outer step 24 (" in said
    assert "2,400 against 2,000" in said
    assert "3 outer steps of ours are given up, those since outer step 17" in said


def test_of_a_fork_longer_ago_than_the_journals_the_least_is_said() -> None:
    said = abandoned(held(range(10, 21), forked_at=2), held(range(5, 25)))
    assert said is not None
    assert "at least 10 outer steps of ours" in said


def test_a_lineage_with_fewer_outer_steps_may_win() -> None:
    ours, theirs = held(range(21), forked_at=3, tokens=9), held(range(8), tokens=9)
    said = abandoned(ours, theirs)
    assert said is not None
    assert "17 outer steps of ours" in said
    assert "as many tokens, 9, and the smaller digest" in said


def test_who_is_only_behind_gives_nothing_up() -> None:
    assert abandoned(held(range(3)), held(range(40))) is None
    assert abandoned(held(range(3)), held(range(20, 40))) is None  # nobody remembers: it is not said to be a fork
