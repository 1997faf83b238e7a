"""One process of a team of contenders: ``python -m prime_p2p.bench.contender OPTIONS``, as JSON.

It does what it is told on standard input, line by line, and answers each line with what it measured.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from blake3 import blake3

from prime_p2p.bench import usage, vectors
from prime_p2p.bench.answers import answering, questions
from prime_p2p.bench.contenders.base import Contender, Options

CONTENDERS = {
    "ours": "ours:Ours",
    "raw_floor": "raw:Raw",
    "hivemind_float16": "hivemind_averager:HivemindAverager",
    "hivemind_8bit": "hivemind_averager:HivemindAverager",
    "gloo_float32": "gloo:Gloo",
    "gather": "gather:Gather",
    "outer": "outer:Outer",
}


class Process:
    """The contender, and what is measured around it."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._mine = vectors.vector(options.rank, options.params)
        self._memory_before = usage.memory_bytes()
        module, _, name = CONTENDERS[options.contender].partition(":")
        made: Callable[..., Contender] = getattr(importlib.import_module(f"prime_p2p.bench.contenders.{module}"), name)
        self._contender = made(options, self._mine)

    def ready(self) -> dict[str, Any]:
        return self._contender.ready()

    def do(self, question: dict[str, Any]) -> dict[str, Any]:
        what = question["do"]
        if what == "meet":
            self._contender.meet(question["team"])
            return {}
        if what == "prepare":
            self._contender.prepare(question["number"])
            usage.forget_peak()
            return {}
        if what == "wire":
            return {"wire": usage.wire_bytes()}
        return self._round() if what == "round" else self._check()

    def _round(self) -> dict[str, Any]:
        cpu, began = usage.cpu_seconds(), time.monotonic()
        known = self._contender.round()
        ended = time.monotonic()
        return {
            "began": began,
            "ended": ended,
            **known,
            "cpu": usage.cpu_seconds() - cpu,
            "memory": usage.memory_bytes(peak=True) - self._memory_before,
        }

    def _check(self) -> dict[str, Any]:
        found = self._contender.result()
        if found is None:
            return {"digest": "", "error_of_mean": None}
        error = vectors.relative_error(found, self._options.peers) if self._options.rank == 0 else None
        return {"digest": blake3(found.view(np.uint8).data).hexdigest(), "error_of_mean": error}

    def close(self) -> None:
        self._contender.close()


def main() -> None:
    options = json.loads(sys.argv[1])
    with answering() as answer:
        process = Process(Options(**options))
        try:
            answer(process.ready())
            for question in questions():
                answer(process.do(question))
        finally:
            process.close()


if __name__ == "__main__":
    main()
