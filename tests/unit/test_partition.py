"""The split of the vector between the peers of a group."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_p2p.allreduce.partition import split

bandwidth = st.one_of(st.just(0.0), st.floats(0.1, 10_000), st.sampled_from([1.0, 100.0]))
groups = st.one_of(st.lists(bandwidth, min_size=1, max_size=9), st.lists(bandwidth, min_size=32, max_size=32))


def slowest(shares: list[float], bandwidths: list[float]) -> float:
    """The time of the slowest peer's link, for shares of a vector that a bandwidth of 1 sends in a time of 1."""
    group = len(bandwidths)
    return max((1 + (group - 2) * x) / b for x, b in zip(shares, bandwidths, strict=True) if b > 0)


def least_time(bandwidths: list[float]) -> float:
    """The least time in which the peers' links could move everything, by bisection."""
    group, owners = len(bandwidths), [b for b in bandwidths if b > 0]
    low, high = 1 / min(owners), (group - 1) / min(owners)
    for _ in range(200):
        time = (low + high) / 2
        if sum((time * b - 1) / (group - 2) for b in owners) >= 1:
            high = time
        else:
            low = time
    return high


@given(st.integers(0, 10**7), groups)
@settings(max_examples=100, deadline=None)
def test_parts_are_never_negative_and_make_up_the_vector(blocks: int, bandwidths: list[float]) -> None:
    parts = split(blocks, bandwidths)
    assert len(parts) == len(bandwidths)
    assert all(part >= 0 for part in parts)
    assert sum(parts) == blocks


@given(groups.filter(lambda bandwidths: len(bandwidths) > 2 and any(bandwidths)))
@settings(max_examples=100, deadline=None)
def test_no_other_split_has_a_faster_slowest_link(bandwidths: list[float]) -> None:
    blocks = 10**12
    shares = [part / blocks for part in split(blocks, bandwidths)]
    assert slowest(shares, bandwidths) == pytest.approx(least_time(bandwidths), rel=1e-6)


@given(st.integers(0, 10**6), groups.filter(any))
@settings(max_examples=100, deadline=None)
def test_a_peer_without_bandwidth_owns_nothing(blocks: int, bandwidths: list[float]) -> None:
    assert all(part == 0 for part, b in zip(split(blocks, bandwidths), bandwidths, strict=True) if b == 0)


@given(st.integers(0, 10**6), groups)
@settings(max_examples=100, deadline=None)
def test_more_bandwidth_never_owns_less(blocks: int, bandwidths: list[float]) -> None:
    by_bandwidth = sorted(zip(bandwidths, split(blocks, bandwidths), strict=True))
    for (slow, smaller), (fast, larger) in pairwise(by_bandwidth):
        assert smaller <= larger + (slow == fast)


@given(st.integers(0, 10**6), groups, st.sampled_from([2.0**-30, 0.5, 1024.0]))
@settings(max_examples=100, deadline=None)
def test_the_unit_of_bandwidth_does_not_matter(blocks: int, bandwidths: list[float], unit: float) -> None:
    assert split(blocks, bandwidths) == split(blocks, [b * unit for b in bandwidths])


@pytest.mark.parametrize(
    ("bandwidths", "parts"),
    [
        ([5.0], [100]),
        ([0.0], [100]),
        ([1.0, 1.0], [50, 50]),
        ([3.0, 1.0], [75, 25]),
        ([3.0, 0.0], [100, 0]),
        ([1.0, 1.0, 1.0], [34, 33, 33]),
        ([0.0, 0.0, 0.0], [34, 33, 33]),
        ([0.0, 1.0, 1.0, 0.0], [0, 50, 50, 0]),
        # Links of 2: each peer has one vector of its own to send, and (time * bandwidth - 1) / 2 parts to return.
        ([1.0, 1.0, 2.0, 2.0], [0, 0, 50, 50]),
        # A link so slow that its own vector alone takes longer than everything else.
        ([1.0, 100.0, 100.0], [0, 50, 50]),
        ([1.0, 100.0, 100.0, 50.0], [0, 40, 40, 20]),
    ],
)
def test_known_splits(bandwidths: list[float], parts: list[int]) -> None:
    assert split(100, bandwidths) == parts


def test_fewer_blocks_than_peers_are_still_split() -> None:
    assert split(2, [1.0] * 5) == [1, 1, 0, 0, 0]
    assert split(0, [1.0] * 5) == [0] * 5


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_bandwidth_that_cannot_be_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="bandwidth"):
        split(10, [1.0, bad])


def test_no_peers_are_refused() -> None:
    with pytest.raises(ValueError, match="no peers"):
        split(10, [])
