"""Chunks and lanes of an all-reduce."""

from __future__ import annotations

import pytest

from prime_p2p.allreduce.plan import CHUNK_BLOCKS, CHUNKS_OF_A_LANE, MOST_LANES, STREAMS, Plan


def plan(parts: list[int], weights: list[int] | None = None) -> Plan:
    peers = [f"peer-{index}" for index in range(len(parts))]
    return Plan(b"g" * 32, peers, weights or [1] * len(parts), parts, peers[0])


def test_the_chunks_of_all_peers_cover_the_vector_once() -> None:
    made = plan([3 * CHUNK_BLOCKS + 1, 0, CHUNK_BLOCKS])
    chunks = [chunk for peer in made.peer_ids for chunk in made.chunks(peer)]
    assert [start for start, _ in chunks[1:]] == [stop for _, stop in chunks[:-1]]
    assert (chunks[0][0], chunks[-1][1]) == (0, 4 * CHUNK_BLOCKS + 1)
    assert made.chunks("peer-1") == []


def test_a_small_vector_takes_one_lane() -> None:
    made = plan([CHUNK_BLOCKS] * 2)
    assert made.lanes("peer-0", "peer-1") == made.lanes("peer-1", "peer-0") == 1


@pytest.mark.parametrize("peers", [2, 3, 4, 8, 32])
def test_a_large_one_takes_a_few_streams_a_peer_in_all(peers: int) -> None:
    made = plan([100 * CHUNK_BLOCKS] * peers)
    lanes = sum(made.lanes(made.me, other) for other in made.others)
    assert min(STREAMS, MOST_LANES) <= lanes < STREAMS + peers
    assert all(1 <= made.lanes(made.me, other) <= MOST_LANES for other in made.others)


def test_a_lane_is_for_what_that_sender_has_for_that_receiver() -> None:
    """Who has not trained has no contribution, and who owns no part has nothing to give back."""
    owner, other = CHUNKS_OF_A_LANE * CHUNK_BLOCKS, 0
    made = plan([owner, other, 0], weights=[1, 0, 1])
    assert made.lanes("peer-1", "peer-0") == 1
    assert made.lanes("peer-2", "peer-0") == 1
    made = plan([2 * owner, 0, 0], weights=[1, 0, 1])
    assert (made.lanes("peer-0", "peer-1"), made.lanes("peer-1", "peer-0"), made.lanes("peer-2", "peer-0")) == (2, 1, 2)
