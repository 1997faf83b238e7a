"""Forming a group: peers that are all ready, and know each other as any peers of a run do."""

from __future__ import annotations

import time
from typing import Any

from blake3 import blake3

from prime_p2p.allreduce.codec import BLOCK, BlockVector, Float32
from prime_p2p.bench.contenders.base import Options
from prime_p2p.swarm.events import Phase
from prime_p2p.swarm.membership import Heartbeat
from prime_p2p.swarm.swarm import Swarm, SwarmOptions

MEET_WITHIN = 60.0
_RUN = "benchmark"


class Gather:
    """One peer that makes rounds over a vector of one block, so that forming the group is what takes time."""

    def __init__(self, options: Options, mine: Float32) -> None:
        self._others = options.peers - 1
        self._swarm = Swarm(_RUN, options.known, SwarmOptions(options.identity, (options.address,)))
        self._swarm.on_phase = self._phase
        self._step, self._digest, self._tokens = 0, bytes(32), 0
        self._formed = 0.0
        self._mine, self._update = BlockVector.empty(BLOCK), BlockVector.empty(BLOCK)
        self._mine.scales.fill(1)

    def _phase(self, phase: str, group_size: int) -> None:
        if phase == Phase.REDUCING.value:
            self._formed = time.monotonic()

    def ready(self) -> dict[str, Any]:
        return {"address": self._swarm.addresses[0]}

    def meet(self, team: list[dict[str, Any]]) -> None:
        self._swarm.enter(bytes(32))
        self._swarm.hold(self._step, self._digest, self._tokens, expected=True, state="training")

    def prepare(self, number: int) -> None:
        def level(others: dict[str, Heartbeat]) -> bool:
            held = [(beat.step, beat.digest) for beat in others.values()]
            return held.count((self._step, self._digest)) == self._others

        if not self._swarm.wait_for(level, MEET_WITHIN):
            raise TimeoutError("the peers did not find each other")

    def round(self) -> dict[str, float]:
        result = self._swarm.make_round(self._mine, self._update, 1)
        if result.group is None:
            raise RuntimeError(f"no round: {result.reason}")
        self._step += 1
        self._tokens += result.group.total_weight
        self._digest = blake3(result.group.id).digest()
        self._swarm.note_commit(result, self._step, self._digest, self._tokens)
        self._swarm.hold(self._step, self._digest, self._tokens)
        return {"formed": self._formed, "members": len(result.group.members)}

    def result(self) -> None:
        return None

    def close(self) -> None:
        self._swarm.close()
