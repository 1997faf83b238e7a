"""How often a peer looks at the heartbeats of others."""

from __future__ import annotations

from prime_p2p.swarm.membership import BEAT_LIVES, FEW, LOOK_EVERY, look_pause


def test_looks_get_rarer_with_more_peers_and_see_every_heartbeat_while_it_holds() -> None:
    assert look_pause(0) == look_pause(FEW) == LOOK_EVERY
    assert look_pause(2 * FEW) == 2 * LOOK_EVERY
    assert look_pause(10**6) < BEAT_LIVES / 2
