"""The kernels of an outer step, on one core: how many bytes of float32 a second they take or make."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from prime_p2p.allreduce import codec
from prime_p2p.allreduce.codec import BITS, BlockVector, Float32
from prime_p2p.bench import vectors
from prime_p2p.bench.tables import table
from prime_p2p.outer import digest, nesterov


@dataclass(frozen=True)
class Kernel:
    """``seconds`` is the median; ``speed`` in GB/s of float32 elements."""

    name: str
    codec: str
    seconds: float
    speed: float


def measure(n: int, rounds: int) -> list[Kernel]:
    """All kernels over n elements, each after one pass that is not counted."""
    out, momentum = np.zeros((2, n), np.float32)
    found = [kernel for name in BITS for kernel in _of_codec(name, (vectors.vector(0, n), out, momentum), rounds)]
    return [*found, _timed("digest of the state", "", rounds, 2 * n, lambda: digest.pieces(out, momentum))]


def _of_codec(name: str, arrays: tuple[Float32, Float32, Float32], rounds: int) -> Iterator[Kernel]:
    x, out, momentum = arrays
    vector = BlockVector.empty(len(x), BITS[name])
    mean = BlockVector.empty(len(x), BITS[name])
    optimizer = nesterov.OuterOptimizer()
    kernels: dict[str, Callable[[], object]] = {
        "quantise": lambda: codec.quantise(x, vector),
        "average of four": lambda: codec.average([vector] * 4, [0.25] * 4, mean),
        "dequantise": lambda: codec.dequantise(vector, out),
        "digest of an update": vector.digest,
        "outer optimizer": lambda: nesterov.step(out, momentum, vector, optimizer),
    }
    for what, work in kernels.items():
        yield _timed(what, name, rounds, len(x), work)


def _timed(what: str, name: str, rounds: int, n: int, work: Callable[[], object]) -> Kernel:
    times = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    seconds = statistics.median(times[1:])
    return Kernel(what, name, seconds, 4 * n / seconds / 1e9)


def as_json(found: list[Kernel]) -> dict[str, Any]:
    return {"kernels": [asdict(one) for one in found]}


def as_markdown(found: list[Kernel]) -> str:
    rows = [[one.name, one.codec, f"{one.seconds * 1e3:.1f}", f"{one.speed:.1f}"] for one in found]
    return "\n".join(table(["kernel", "codec", "ms", "GB/s of float32"], rows))
