"""Ours: int8 blocks, averaged by the butterfly all-reduce over libp2p streams."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from prime_p2p.allreduce.butterfly import Traffic
from prime_p2p.allreduce.codec import BITS, BlockVector, Float32, blocks_of, dequantise, quantise
from prime_p2p.allreduce.exchanges import Exchanges
from prime_p2p.allreduce.partition import split
from prime_p2p.allreduce.plan import Plan
from prime_p2p.bench.contenders.base import Options
from prime_p2p.network.loop import LoopThread
from prime_p2p.network.node import Node, NodeConfig

STALL = 30.0
ROUND_WITHIN = 600.0
_RUN = "benchmark"


class NodeOfTeam:
    """A node of this process, on a loop of its own, that knows the first one of the team."""

    def __init__(self, options: Options) -> None:
        self.loop = LoopThread()
        known = (options.first["address"],) if options.first else ()
        identity = Path(options.folder) / f"{options.contender}-{options.rank}.key"
        self.node: Node = self.loop.run(Node.create(NodeConfig(identity, known, options.address)), 60)
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


class Ours:
    """One peer of the butterfly: quantise, reduce, dequantise."""

    def __init__(self, options: Options, mine: Float32) -> None:
        self._options = options
        self._vector = mine
        self._mean = np.zeros(options.params, np.float32)
        bits = BITS[options.codec]
        self._mine, self._update = BlockVector.empty(options.params, bits), BlockVector.empty(options.params, bits)
        self._network = NodeOfTeam(options)
        self._team: list[str] = []
        self._number = 0

    def ready(self) -> dict[str, Any]:
        return self._network.card

    def meet(self, team: list[dict[str, Any]]) -> None:
        self._team = [member["peer"] for member in team]
        self._exchanges = Exchanges(self._network.node, _RUN, STALL)
        self._network.loop.run(self._exchanges.serve(), 10)

    def prepare(self, number: int) -> None:
        self._number = number

    def round(self) -> dict[str, float]:
        quantise(self._vector, self._mine)
        traffic = Traffic()
        plan = plan_of(self._options, self._team, self._network.node.peer_id, self._number)
        began = time.monotonic()
        reduce = self._exchanges.reduce(plan, self._mine, self._update, traffic)
        self._network.loop.run(reduce, ROUND_WITHIN)
        ended = time.monotonic()
        dequantise(self._update, self._mean)
        return {"sent": traffic.sent, "reduce_began": began, "reduce_ended": ended}

    def result(self) -> Float32:
        return self._mean

    def close(self) -> None:
        self._exchanges.close()
        self._network.close()
