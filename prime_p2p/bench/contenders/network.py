"""What the contenders over libp2p streams share: a node, and the plan of a round."""

from __future__ import annotations

from typing import Any

from blake3 import blake3

from prime_p2p.allreduce.codec import blocks_of
from prime_p2p.allreduce.partition import split
from prime_p2p.allreduce.plan import Plan
from prime_p2p.bench.contenders.base import Options
from prime_p2p.network.loop import LoopThread
from prime_p2p.network.node import Node, NodeConfig

STALL = 30.0
ROUND_WITHIN = 600.0


class NodeOfTeam:
    """A node of this process, on a loop of its own, that knows the first one of the team."""

    def __init__(self, options: Options) -> None:
        self.loop = LoopThread()
        config = NodeConfig(options.identity, options.known, (options.address,))
        self.node: Node = self.loop.run(Node.create(config), 60)
        self.address = self.loop.run(self.node.addresses(), 10)[0]

    @property
    def card(self) -> dict[str, Any]:
        return {"peer": self.node.peer_id, "address": self.address}

    def close(self) -> None:
        self.loop.run(self.node.close(), 30)
        self.loop.close()


def plan_of(options: Options, team: list[str], me: str, number: int = 0) -> Plan:
    """That of a round of peers with equal weights."""
    parts = split(blocks_of(options.params), options.bandwidths or (1.0,) * len(team))
    return Plan(blake3(number.to_bytes(8, "little")).digest(), team, [1] * len(team), parts, me)
