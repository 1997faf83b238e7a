"""hivemind's ``load_state_from_peers``: a process that has a state, or one that fetches it.

``python -m prime_p2p.bench.hivemind_state OPTIONS``, as JSON: ``params`` and ``first``, the answer of the process that
has the state (empty for itself). Anchor and momentum are two float32 tensors, as many bytes as a snapshot has; the
averagers are as they come. The one that fetches does so once for each line on standard input, and answers how long it
took; both end when that does.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator

import hivemind
import torch

from prime_p2p.bench.answers import answering, questions

DECLARED_WITHIN, LOADED_WITHIN = 60.0, 300.0  # seconds
_PREFIX = "benchmark"
_ANCHOR, _MOMENTUM = 0.5, 0.25


@contextlib.contextmanager
def _averager(n: int, first: dict[str, str]) -> Iterator[hivemind.DecentralizedAverager]:
    """One that has the state and gives it, where nobody was first, or one that has none."""
    known = [first["address"]] if first else []
    dht = hivemind.DHT(initial_peers=known, host_maddrs=["/ip4/127.0.0.1/tcp/0"], start=True, use_auto_relay=False)
    try:
        tensors = (
            [torch.zeros(1), torch.zeros(1)] if first else [torch.full((n,), _ANCHOR), torch.full((n,), _MOMENTUM)]
        )
        averager = hivemind.DecentralizedAverager(
            averaged_tensors=tensors, dht=dht, prefix=_PREFIX, allow_state_sharing=not first, start=True
        )
        try:
            yield averager
        finally:
            averager.shutdown()
    finally:
        dht.shutdown()


def _seconds_to_load(mine: hivemind.DecentralizedAverager, n: int) -> float:
    deadline = time.monotonic() + DECLARED_WITHIN
    while True:
        began = time.monotonic()
        # With a timeout of any length, hivemind lets the donor take 3 s at most before its first byte.
        loaded = mine.load_state_from_peers(wait=False).result(LOADED_WITHIN)
        if loaded is not None:
            break
        if time.monotonic() > deadline:
            raise TimeoutError("the donor has not declared its state")
        time.sleep(0.5)
    seconds = time.monotonic() - began
    if [float(tensor[n - 1]) for tensor in loaded[1]] != [_ANCHOR, _MOMENTUM]:
        raise RuntimeError("hivemind did not load the state")
    return seconds


def main() -> None:
    options = json.loads(sys.argv[1])
    n, first = options["params"], options["first"]
    with answering() as answer, _averager(n, first) as mine:
        answer({"address": str(mine.dht.get_visible_maddrs()[0])})
        for _ in questions():
            answer({"seconds": _seconds_to_load(mine, n)})


if __name__ == "__main__":
    main()
