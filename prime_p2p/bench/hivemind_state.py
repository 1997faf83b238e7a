"""How fast hivemind's ``load_state_from_peers`` fetches a state: python scripts/hivemind_state.py [--parameters 50]

For ``state_benchmark.py``, which calls it in the same run: one process has the state, another fetches it, both with the
averager as it comes. Anchor and momentum are two float32 tensors, as many bytes as a snapshot has.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import hivemind
import torch

PREFIX = "benchmark"
DECLARED_WITHIN, LOADED_WITHIN = 60.0, 300.0  # seconds


@contextlib.contextmanager
def averager(n: int, initial_peers: list[str], shares: bool) -> Iterator[hivemind.DecentralizedAverager]:
    dht = hivemind.DHT(initial_peers=initial_peers, host_maddrs=["/ip4/127.0.0.1/tcp/0"], start=True)
    try:
        tensors = [torch.full((n,), 0.5), torch.full((n,), 0.25)] if shares else [torch.zeros(1), torch.zeros(1)]
        averager = hivemind.DecentralizedAverager(
            averaged_tensors=tensors, dht=dht, prefix=PREFIX, allow_state_sharing=shares, start=True
        )
        try:
            yield averager
        finally:
            averager.shutdown()
    finally:
        dht.shutdown()


def donor(n: int) -> None:
    with averager(n, [], shares=True) as mine:
        print(mine.dht.get_visible_maddrs()[0], flush=True)
        sys.stdin.read()


def seconds_to_load(address: str, n: int, times: int) -> list[float]:
    with averager(n, [address], shares=False) as mine:
        taken: list[float] = []
        deadline = time.monotonic() + DECLARED_WITHIN
        while len(taken) < times:
            began = time.monotonic()
            # With a timeout of any length, hivemind lets the donor take 3 s at most before its first byte.
            loaded = mine.load_state_from_peers(wait=False).result(LOADED_WITHIN)
            if loaded is None:
                if time.monotonic() > deadline:
                    raise TimeoutError("the donor has not declared its state")
                time.sleep(0.5)
                continue
            taken.append(time.monotonic() - began)
            assert [float(tensor[n - 1]) for tensor in loaded[1]] == [0.5, 0.25]
        return taken


def measure(n: int, times: int = 3) -> float:
    """Median seconds that it takes to fetch a state of n parameters from one donor."""
    command = [sys.executable, __file__, "--parameters", str(n / 1e6)]
    quiet = os.environ | {"HIVEMIND_LOGLEVEL": "ERROR"}
    with subprocess.Popen(
        [*command, "--donor"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=quiet
    ) as giving:
        try:
            address = giving.stdout.readline().strip()  # type: ignore[union-attr]
            output = subprocess.run(
                [*command, "--from", address, "--times", str(times)],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                env=quiet,
            ).stdout
        finally:
            giving.communicate()
    return statistics.median(map(float, output.split()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=50.0, help="in millions")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--donor", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--from", dest="address", help=argparse.SUPPRESS)
    options = parser.parse_args()
    n = int(options.parameters * 1e6)
    if options.donor:
        donor(n)
    elif options.address:
        print(*(f"{seconds:.3f}" for seconds in seconds_to_load(options.address, n, options.times)))
    else:
        seconds = measure(n, options.times)
        print(f"hivemind, {n / 1e6:g} M parameters: {8 * n / seconds / 1e6:.0f} MB/s ({seconds:.2f} s)")


if __name__ == "__main__":
    main()
