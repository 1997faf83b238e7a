"""A whole outer step of a peer that trains: pseudo-gradient, round, outer optimizer, parameters, journal, digest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from prime_p2p.allreduce.codec import Float32
from prime_p2p.bench.contenders.base import Options
from prime_p2p.diloco import DiLoCo, DiLoCoOptions
from prime_p2p.swarm.gathering import RoundPolicy
from prime_p2p.swarm.swarm import Swarm, SwarmOptions

MEET_WITHIN = 60.0
_TENSORS = 8
_POLICY = RoundPolicy(patience=60.0, grace=10.0, stall_timeout=30.0)


class Outer:
    """One peer whose model has no loss: an inner step moves its parameters by the vector it is given."""

    def __init__(self, options: Options, mine: Float32) -> None:
        self._options = options
        torch.set_num_threads(max(1, options.threads))
        self._pieces = torch.from_numpy(mine).tensor_split(_TENSORS)
        self._model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros_like(piece)) for piece in self._pieces])
        bandwidth = options.bandwidths[options.rank] if options.bandwidths else 100.0
        swarm = SwarmOptions(options.identity, (options.address,), bandwidth=bandwidth, policy=_POLICY)
        self._swarm = Swarm("benchmark", options.known, swarm)

    def ready(self) -> dict[str, Any]:
        return {"address": self._swarm.addresses[0]}

    def meet(self, team: list[dict[str, Any]]) -> None:
        optimizer = torch.optim.SGD(self._model.parameters(), lr=0.0)
        directory = Path(self._options.folder) / f"outer-{self._options.rank}"
        options = DiLoCoOptions(
            directory,
            threads=self._options.threads,
            codec=self._options.codec,
            explosion_factor=0.0,
            may_start=True,
        )
        self._diloco = DiLoCo(self._model, optimizer, self._swarm, inner_steps=1, options=options)

    def prepare(self, number: int) -> None:
        with torch.no_grad():
            for parameter, piece in zip(self._model, self._pieces, strict=True):
                parameter += piece
        if not self._swarm.wait_for(self._level, MEET_WITHIN):
            raise TimeoutError("the peers do not hold the same state")

    def _level(self, others: dict[str, Any]) -> bool:
        digest = self._diloco.state.digest
        return sum(beat.digest == digest for beat in others.values()) == self._options.peers - 1

    def round(self) -> dict[str, float]:
        made = self._diloco.step()
        assert made is not None  # there is one inner step in an outer one
        if made.round.group is None or len(made.round.group.members) != self._options.peers:
            raise RuntimeError(f"no outer step of all peers: {made.round.reason}")
        phases = {phase: made.seconds[phase] for phase in ("gather", "reduce", "commit", "apply")}
        return {**phases, "sent": made.round.traffic.sent}

    def result(self) -> Float32:
        return self._diloco.state.anchor

    def close(self) -> None:
        self._swarm.close()
