"""What a peer tells of its own life, while it trains and when it does not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from test_news import missed

from prime_p2p.peer import Peer


def peer_that_says(said: list[str], *, leaving: bool = False) -> Peer:
    """A peer with nothing but what tells of it."""
    peer = object.__new__(Peer)
    peer.swarm = SimpleNamespace(leaving=leaving)  # type: ignore[assignment]
    peer.news = SimpleNamespace(missed=lambda outcome: said.append(outcome.round.reason))  # type: ignore[assignment]
    peer.saver = SimpleNamespace(poll=lambda: None)  # type: ignore[assignment]
    peer.reader = SimpleNamespace(note=lambda diloco, group: None)  # type: ignore[assignment]
    peer.diloco = SimpleNamespace()  # type: ignore[assignment]
    return peer


@pytest.mark.parametrize(("leaving", "told"), [(False, ["too few"]), (True, [])])
def test_a_round_that_a_leaving_peer_gives_up_is_not_told_as_missed(leaving: bool, told: list[str]) -> None:
    said: list[str] = []
    peer_that_says(said, leaving=leaving).after_outer_step(missed("too few"))
    assert said == told
