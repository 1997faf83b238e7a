"""How many streams one peer may have open: fewer where many are open in all."""

from __future__ import annotations

from prime_p2p.network.node import MAX_STREAMS, MAX_STREAMS_OF_A_PEER, streams_of_a_peer


def greedy(peers: int) -> list[int]:
    """The streams of so many peers that each open all they can, in turns."""
    held = [0] * peers
    for _ in range(MAX_STREAMS_OF_A_PEER + 1):
        for peer in range(peers):
            held[peer] += held[peer] < streams_of_a_peer(MAX_STREAMS - sum(held))
    return held


def test_a_few_peers_may_have_as_many_as_they_need() -> None:
    assert greedy(4) == [MAX_STREAMS_OF_A_PEER] * 4


def test_however_many_peers_take_all_they_can_another_one_is_let_in() -> None:
    for peers in (16, 64, 400):
        assert streams_of_a_peer(MAX_STREAMS - sum(greedy(peers))) >= 1
    assert streams_of_a_peer(MAX_STREAMS - sum(greedy(16))) >= 16


def test_there_are_so_many_in_all() -> None:
    assert sum(greedy(2 * MAX_STREAMS)) == MAX_STREAMS
    assert streams_of_a_peer(0) == 0
