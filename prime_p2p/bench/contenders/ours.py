"""Ours: int8 blocks, averaged by the butterfly all-reduce over libp2p streams."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from prime_p2p.allreduce.butterfly import Traffic
from prime_p2p.allreduce.codec import BITS, BlockVector, Float32, dequantise, quantise
from prime_p2p.allreduce.exchanges import Exchanges
from prime_p2p.bench.contenders.base import Options
from prime_p2p.bench.contenders.network import ROUND_WITHIN, STALL, NodeOfTeam, plan_of

_RUN = "benchmark"


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
