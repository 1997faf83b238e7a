"""What a round remembers of the peers that have come and gone."""

from __future__ import annotations

from prime_p2p.swarm import context
from prime_p2p.swarm.context import RoundContext
from prime_p2p.swarm.gathering import RoundPolicy


def test_of_peers_that_come_and_go_those_lost_last_are_remembered() -> None:
    known = RoundContext("run", "me", RoundPolicy())
    for number in range(3 * context.MOST_LOST):
        assert not known.hear(f"peer {number}")
        known.lose(f"peer {number}")
    assert not known.heard
    assert len(known.lost) == context.MOST_LOST
    assert f"peer {2 * context.MOST_LOST}" in known.lost
    known.lose(f"peer {2 * context.MOST_LOST}")  # once more: others have been lost for longer
    known.lose("one more")
    assert known.hear(f"peer {2 * context.MOST_LOST}")
    assert known.heard == {f"peer {2 * context.MOST_LOST}"}
    assert not known.heard & known.lost
