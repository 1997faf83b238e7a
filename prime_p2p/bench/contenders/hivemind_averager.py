"""hivemind's ``DecentralizedAverager``, with float16 or an 8-bit codec, as it comes but for limits on its waits.

Its search for a group, which takes seconds, is not measured: a round begins when all have found it and are triggered.
"""

from __future__ import annotations

import time
from typing import Any

import hivemind
import torch
from hivemind.averaging.control import AveragingStage
from hivemind.compression import CompressionBase, Float16Compression, Uniform8BitQuantization

from prime_p2p.allreduce.codec import Float32
from prime_p2p.bench.contenders.base import Options

MATCHMAKING = 3.0  # seconds that it looks for peers; with less it splits the group on a busy machine
GROUP_WITHIN = 60.0
ROUND_WITHIN = 300.0

_CODECS: dict[str, type[CompressionBase]] = {
    "hivemind_float16": Float16Compression,
    "hivemind_8bit": Uniform8BitQuantization,
}


class HivemindAverager:
    """One averager; its DHT and itself are processes of their own."""

    def __init__(self, options: Options, mine: Float32) -> None:
        self._options = options
        self._mine = torch.from_numpy(mine)
        self._dht = hivemind.DHT(
            initial_peers=options.known, host_maddrs=[f"/ip4/{options.address}/tcp/0"], start=True, use_auto_relay=False
        )
        self._averager = hivemind.DecentralizedAverager(
            averaged_tensors=[torch.zeros_like(self._mine)],
            dht=self._dht,
            prefix="benchmark",
            target_group_size=options.peers,
            min_group_size=options.peers,
            min_matchmaking_time=MATCHMAKING,
            request_timeout=MATCHMAKING / 2,
            compression=_CODECS[options.contender](),
            allreduce_timeout=ROUND_WITHIN,
            bandwidth=options.bandwidths[options.rank] if options.bandwidths else None,
            allow_state_sharing=False,
            start=True,
        )

    def ready(self) -> dict[str, Any]:
        addresses = [str(address) for address in self._dht.get_visible_maddrs()]
        here = f"/ip4/{self._options.address}/"
        return {"address": next((address for address in addresses if address.startswith(here)), addresses[0])}

    def meet(self, team: list[dict[str, Any]]) -> None:
        pass

    def prepare(self, number: int) -> None:
        with self._averager.get_tensors() as tensors:
            tensors[0].copy_(self._mine)
        deadline = time.monotonic() + GROUP_WITHIN
        while not self._finds_a_group(deadline):
            if time.monotonic() > deadline:
                raise TimeoutError(f"hivemind found no group within {GROUP_WITHIN:g} s")

    def _finds_a_group(self, deadline: float) -> bool:
        self._step = self._averager.step(wait=False, require_trigger=True, timeout=GROUP_WITHIN)
        while self._step.stage != AveragingStage.AWAITING_TRIGGER:  # which can only be looked at
            if self._step.done() or time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def round(self) -> dict[str, float]:
        self._step.allow_allreduce()
        if self._step.result(ROUND_WITHIN) is None:
            raise RuntimeError("hivemind's averager did not average")
        return {}

    def result(self) -> Float32:
        with self._averager.get_tensors() as tensors:
            return tensors[0].clone().numpy()

    def close(self) -> None:
        self._averager.shutdown()
        self._dht.shutdown()
