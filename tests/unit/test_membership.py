"""How often a peer says that it is there, and looks at what others say; which run is meant."""

from __future__ import annotations

import pytest

from prime_p2p.errors import BadInput
from prime_p2p.swarm.membership import (
    BEAT_EVERY,
    BEAT_GAP,
    BEAT_LIVES,
    FEW,
    LOOK_EVERY,
    beat_gap,
    beat_pause,
    look_pause,
    which,
)


def test_looks_get_rarer_with_more_peers_and_so_bring_no_more_heartbeats_a_second() -> None:
    assert look_pause(0) == look_pause(FEW) == LOOK_EVERY
    for others in (2 * FEW, 100, 1000):
        assert others / look_pause(others) == FEW / LOOK_EVERY


def test_heartbeats_get_rarer_too_but_there_is_always_one_that_holds() -> None:
    assert (beat_pause(0), beat_gap(0)) == (beat_pause(FEW), beat_gap(FEW)) == (BEAT_EVERY, BEAT_GAP)
    assert beat_gap(2 * FEW) == 2 * BEAT_GAP
    for others in (2 * FEW, 100, 10**6):
        assert BEAT_EVERY < beat_pause(others) <= BEAT_LIVES / 3
        assert beat_gap(others) <= beat_pause(others)


def test_which_run_is_meant_is_found_or_said_in_one_line() -> None:
    known = ["demo/RtbTMuUnjx33J9aGCtg83C", "tiny"]
    assert which(known, "demo") == known[0]
    assert which(known, "tiny") == which(["tiny"], None) == "tiny"
    for there, run, complaint in (
        (known, None, "several runs are known there, name one of them with --run: demo/RtbTMuUnjx33J9aGCtg83C, tiny"),
        (known, "other", "run other is not known there; known are: demo/RtbTMuUnjx33J9aGCtg83C, tiny"),
        ([], None, "no run is known there: none of its peers is there, or the address is of another network"),
    ):
        with pytest.raises(BadInput) as raised:
            which(there, run)
        assert str(raised.value) == complaint
