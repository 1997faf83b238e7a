"""Peers of several ranks, as processes on loopback: a run does not see how many devices a peer has."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest
from processes import PATIENCE, Peer, agree, network

from prime_p2p.state.checkpoint import Checkpoint
from prime_p2p.state.checkpoints import Checkpoints

pytestmark = pytest.mark.timeout(300)

TWO = ("--devices", "2")


def saved(peer: Peer) -> Checkpoint:
    checkpoint = Checkpoints(peer.directory / "checkpoints").load_newest()
    assert checkpoint is not None
    return checkpoint


def rank_1(peer: Peer) -> psutil.Process:
    (process,) = [child for child in peer.children() if "prime_p2p.training.ranks" in child.cmdline()]
    return process


def test_peers_of_one_and_two_ranks_share_a_run_and_one_rank_goes_on_from_the_checkpoint_of_two(tmp_path: Path) -> None:
    with network(tmp_path) as (_, _, start):
        other = start("other", **{"round.start_with": 2})
        peer = start("peer", options=TWO)
        peer.outer_step(lambda step: len(step["group"]) == 2)
        processes, steps = peer.children(), peer.steps
        peer.signal(signal.SIGTERM)
        assert peer.wait() == 0, peer.stderr
        assert not [process for process in processes if process.is_running()]
        stopped = saved(peer)
        peer = start("peer")
        assert peer.event("outer_step")["outer_step"] > stopped.outer.step
        peer.steps += steps
        other.outer_step(lambda step: step["outer_step"] == peer.steps[0]["outer_step"])
        assert agree(peer, other) >= 2


@pytest.mark.parametrize("alone", [True, False])
def test_a_peer_ends_when_a_rank_of_it_is_killed_and_names_it_and_its_checkpoint_is_whole(
    tmp_path: Path, alone: bool
) -> None:
    with network(tmp_path) as (_, _, start):
        # One with another peer has to wait for that, which is stopped, when it loses its rank.
        peer = start("peer", options=TWO, **{"checkpoint.every": 1, "round.patience": 100.0})
        other = None if alone else start("other", **{"round.patience": 100.0})
        peer.event("outer_step")  # after which a checkpoint is begun
        peer.outer_step(lambda step: len(step["group"]) == (1 if alone else 2))
        if other is not None:
            other.signal(signal.SIGSTOP)
        rank_1(peer).kill()
        assert peer.wait(PATIENCE) == 1
        words = "rank 1 of this peer was killed by SIGKILL, so the peer leaves"
        assert [line for line in peer.stderr.splitlines() if line.startswith("prime-p2p: ")] == [
            f"prime-p2p: {words}; started again, it goes on from its last checkpoint"
        ]
        assert saved(peer).outer.step >= 1
