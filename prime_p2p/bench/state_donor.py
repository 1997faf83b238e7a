"""A process that has the state after one outer step and gives it: ``python -m prime_p2p.bench.state_donor OPTIONS``.

OPTIONS is JSON: ``params``, ``folder`` (its own, empty) and ``first`` (what the first donor answered; empty for that
one). It answers with its address, its peer id and the digests before and after the outer step; then each line on
standard input with how long training has waited for the lock of the state at most, until that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from prime_p2p.allreduce.codec import BlockVector, Float32, quantise
from prime_p2p.bench import state_raw
from prime_p2p.bench.answers import answering
from prime_p2p.network.node import Node, NodeConfig
from prime_p2p.outer.journal import Journal, JournalEntry
from prime_p2p.outer.nesterov import OuterOptimizer
from prime_p2p.outer.state import OuterState
from prime_p2p.state.transfer import Source, StateServer

RUN = "benchmark"
OUTER = OuterOptimizer()
_TOKENS = 100
_LOOK_EVERY = 0.002  # seconds


def parameters(n: int) -> Float32:
    """Those that the run begins with."""
    return np.random.default_rng(0).standard_normal(n, np.float32)


class LongestWait:
    """The longest wait for a state's lock, in ``seconds``, as training would have it that wants it all the time."""

    def __init__(self, state: OuterState) -> None:
        self._state = state
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="longest wait", daemon=True)
        self.seconds = 0.0

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK_EVERY):
            began = time.perf_counter()
            with self._state.lock:
                self.seconds = max(self.seconds, time.perf_counter() - began)

    def __enter__(self) -> LongestWait:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def _outer_step(n: int, journal: Journal) -> tuple[OuterState, dict[str, Any]]:
    """The state after it, and its digests."""
    state = OuterState.initial(parameters(n))
    update = BlockVector.empty(n)
    quantise(np.random.default_rng(1).standard_normal(n, np.float32) * np.float32(0.01), update)
    before = state.digest
    after = state.apply(update, _TOKENS, OUTER)
    journal.append(JournalEntry(0, before, after, _TOKENS, n), update)
    return state, {"before": before.hex(), "after": after.hex()}


async def _donate(options: dict[str, Any]) -> None:
    folder, first = Path(options["folder"]), options["first"]
    journal = Journal(folder / "journal")
    state, digests = _outer_step(options["params"], journal)
    async with contextlib.AsyncExitStack() as opened:
        answer = opened.enter_context(answering())
        node = await Node.create(NodeConfig(folder / "identity.key", (first["address"],) if first else ()))
        opened.push_async_callback(node.close)
        await StateServer(node, RUN, Source(lambda: state, journal, {}, folder), state_raw.STALL).serve()
        await state_raw.serve(node, state)
        with LongestWait(state) as wait:
            answer({"peer": node.peer_id, "address": (await node.addresses())[0], **digests})
            while await asyncio.to_thread(sys.stdin.readline):
                answer({"longest_wait": wait.seconds})


if __name__ == "__main__":
    uvloop.run(_donate(json.loads(sys.argv[1])))
