"""Real nodes with the rounds of one peer each, and no training."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import nodes
import numpy as np
from blake3 import blake3

from prime_p2p.allreduce.codec import BLOCK, BlockVector
from prime_p2p.network.node import Node
from prime_p2p.swarm import events as ev
from prime_p2p.swarm.gathering import RoundPolicy, Seen
from prime_p2p.swarm.groups import Group
from prime_p2p.swarm.runner import RoundResult, RoundRunner

N = 256 * BLOCK
POLICY = RoundPolicy(patience=20.0, grace=5.0, stall_timeout=5.0)
ROUND = 60.0  # seconds: far above what a round takes
State = tuple[int, bytes]
FIRST: State = (0, bytes(32))


class RoundPeer:
    """One peer, that holds what it is told to hold."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.mine, self.update = BlockVector.empty(N), BlockVector.empty(N)
        self.weight = 1
        self.mine.scales[:] = 1.0
        self.mine.values[:] = np.arange(N) % 100
        self.runner = RoundRunner(node, "rounds", POLICY, on_hurry=lambda: None, on_phase=lambda phase, size: None)

    @property
    def peer_id(self) -> str:
        return self.node.peer_id

    def hold(self, state: State, everybody: Iterable[RoundPeer]) -> None:
        others = {peer.peer_id for peer in everybody} - {self.peer_id}
        tokens = state[0]
        self.runner.peers_seen({peer: Seen(peer, *state, tokens=tokens) for peer in others})
        self.runner.state_changed(ev.StateChanged(*state, tokens))

    async def make_round(self) -> RoundResult:
        return await asyncio.wait_for(
            self.runner.make_round(self.mine, self.update, ev.Ready(self.weight, 100.0)), ROUND
        )


async def round_peers(swarm: nodes.Swarm, count: int) -> list[RoundPeer]:
    first = await swarm.node("peer-0")
    door = await nodes.address(first)
    rest = await asyncio.gather(*(swarm.node(f"peer-{number}", door) for number in range(1, count)))
    peers = [RoundPeer(node) for node in (first, *rest)]
    for peer in peers:
        await peer.runner.start()
    return peers


async def one_round(peers: list[RoundPeer], state: State) -> list[RoundResult]:
    """All make a round from this state."""
    for peer in peers:
        peer.hold(state, peers)
    return await asyncio.gather(*(peer.make_round() for peer in peers))


def group_of(results: Iterable[RoundResult]) -> Group:
    """The group that was committed; all who committed have the same."""
    (group,) = {result.group for result in results if result.group is not None}
    return group


def state_after(group: Group) -> State:
    return group.step + 1, blake3(group.id).digest()
