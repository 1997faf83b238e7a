"""What announcing costs: bounded for a peer, and in proportion to the peers for a node that keeps their heartbeats."""

from __future__ import annotations

import pytest

from prime_p2p.bench.announcing import of_a_keeper, of_a_peer
from prime_p2p.network.storage import MOST_OF_A_KEY


@pytest.mark.parametrize("peers", [2, 10, 30, 100, 300, 1000, MOST_OF_A_KEY])
def test_a_peer_causes_at_most_two_and_a_half_megabytes_a_minute_however_many_there_are(peers: int) -> None:
    assert 0 < of_a_peer(peers).minute < 2.5


def test_a_node_that_keeps_the_heartbeats_sends_in_proportion_to_the_peers_and_takes_in_less() -> None:
    few, many = of_a_keeper(100), of_a_keeper(1000)
    assert 9 < many.sent / few.sent < 11
    assert many.received < 10.5 * few.received
    assert many.minute < 1000 * 0.2
