"""torch.distributed's all-reduce of float32 by gloo: unencrypted, and nobody may fail."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from prime_p2p.allreduce.codec import Float32
from prime_p2p.bench.contenders.base import Options
from prime_p2p.bench.usage import device_of

_TIMEOUT = timedelta(seconds=300)


class Gloo:
    """One rank of the process group."""

    def __init__(self, options: Options, mine: Float32) -> None:
        self._options = options
        self._mine = torch.from_numpy(mine)
        self._tensor = torch.zeros_like(self._mine)

    def ready(self) -> dict[str, Any]:
        os.environ["GLOO_SOCKET_IFNAME"] = device_of(self._options.address)
        return {}

    def meet(self, team: list[dict[str, Any]]) -> None:
        store = FileStore(str(Path(self._options.folder) / "gloo"), self._options.peers)
        dist.init_process_group(
            "gloo", store=store, rank=self._options.rank, world_size=self._options.peers, timeout=_TIMEOUT
        )

    def prepare(self, number: int) -> None:
        self._tensor.copy_(self._mine)

    def round(self) -> dict[str, float]:
        dist.all_reduce(self._tensor)
        self._tensor /= self._options.peers
        return {}

    def result(self) -> Float32:
        return self._tensor.numpy()

    def close(self) -> None:
        dist.destroy_process_group()
