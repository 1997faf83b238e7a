"""What a peer tells of its own life, while it trains and when it does not."""

from __future__ import annotations

from contextlib import nullcontext
from threading import Condition
from types import SimpleNamespace
from typing import Any

import pytest
from test_news import missed

from prime_p2p import peer as peers
from prime_p2p.monitor.events import State
from prime_p2p.peer import Peer


def peer_that_says(said: list[str], *, leaving: bool = False, phase: str = "train") -> Any:
    """A peer with nothing but what tells of it, in a run that its author has in this phase."""
    peer: Any = object.__new__(Peer)
    peer.swarm = SimpleNamespace(leaving=leaving, sit_out=lambda **changes: None)
    peer.news = SimpleNamespace(
        missed=lambda outcome: said.append(outcome.round.reason),
        phase=lambda phase, group_size: said.append(State(phase).value),
        reporter=SimpleNamespace(log=lambda text: None),
    )
    peer.saver = SimpleNamespace(poll=lambda: None)
    peer.reader = SimpleNamespace(note=lambda diloco, group: None)
    peer.diloco = SimpleNamespace(state=SimpleNamespace(step=7), outside_inner_steps=nullcontext)
    peer.terms = SimpleNamespace(refusal=None, phase_at=lambda step: phase, changed=Condition())
    peer.paused_at = None
    return peer


@pytest.mark.parametrize(("leaving", "told"), [(False, ["too few"]), (True, [])])
def test_a_round_that_a_leaving_peer_gives_up_is_not_told_as_missed(leaving: bool, told: list[str]) -> None:
    said: list[str] = []
    peer_that_says(said, leaving=leaving).after_outer_step(missed("too few"))
    assert said == told


def test_a_paused_peer_says_so_once_and_that_it_trains_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "PAUSE", 0.0)
    said: list[str] = []
    peer = peer_that_says(said, phase="pause")
    assert [peer.waits_for_the_author() for _ in range(2)] == [True, True]
    assert said == ["paused"]
    peer.terms.phase_at = lambda step: "train"
    assert [peer.waits_for_the_author() for _ in range(2)] == [False, False]
    assert said == ["paused", "training"]
