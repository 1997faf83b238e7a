"""Peers as processes on machines whose clocks are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import network

pytestmark = pytest.mark.timeout(300)

WRONG_CLOCK = """
import time
right = time.time
time.time = lambda: right() + {ahead}
"""


def set_clock(folder: Path, monkeypatch: pytest.MonkeyPatch, ahead: float) -> None:
    """Have the processes that are started from now on see a clock that is wrong."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(WRONG_CLOCK.format(ahead=ahead))
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_peers_with_wrong_clocks_train_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with network(tmp_path) as (_, _, start):
        peers = [start("right", **{"round.start_with": 3})]
        for name, ahead in (("ahead", 40.0), ("behind", -40.0)):
            set_clock(tmp_path / f"{name}-clock", monkeypatch, ahead)
            peers.append(start(name, **{"round.start_with": 3}))
        for _ in range(2):
            for peer in peers:
                step = peer.outer_step(lambda step: len(step["group"]) == 3)
                assert step["weights"] == [20 * 2 * 32] * 3


def test_a_peer_whose_clock_is_too_wrong_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with network(tmp_path) as (_, _, start):
        set_clock(tmp_path / "clock", monkeypatch, 4000.0)
        peer = start("peer")
        assert peer.wait() == 3
        (line,) = [line for line in peer.stderr.splitlines() if line.startswith("prime-p2p:")]
        assert "ahead of the swarm's, more than the 600 s that are made up for" in line
        assert "Traceback" not in peer.stderr
