"""How fast a joining peer gets the state of a run: python scripts/state_benchmark.py [--parameters 50] [--donors 1 2 4]

Donors are processes on this machine. A snapshot (8 bytes a parameter) is fetched from 1, 2 and 4 of them several times,
and the same bytes over raw streams between the same processes just before each, once from the state's memory to such
memory as the snapshot comes to, and once from and to one small buffer; then one missed update is fetched and replayed.
Also printed: how long the training of a donor waits for the lock of its state while it writes the snapshot, and what
hivemind's ``load_state_from_peers`` takes for as many bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import hivemind_state
import numpy as np
import uvloop

from prime_p2p.allreduce.codec import BlockVector, quantise
from prime_p2p.network.frames import Message, Schema
from prime_p2p.network.node import Node, NodeConfig
from prime_p2p.network.streams import Stream
from prime_p2p.outer.digest import PIECE
from prime_p2p.outer.journal import Journal, JournalEntry
from prime_p2p.outer.nesterov import OuterOptimizer
from prime_p2p.outer.state import OuterState
from prime_p2p.state.client import StateClient
from prime_p2p.state.shelf import Shelf
from prime_p2p.state.snapshots import Snapshots
from prime_p2p.state.standing import Standing
from prime_p2p.state.transfer import Source, StateServer
from prime_p2p.state.undo import Undo

RUN, RAW = "benchmark", "benchmark/raw"
STALL = 30.0
OUTER = OuterOptimizer()


class Bytes(Message):
    """Send me ``count`` bytes of the anchor and the momentum from ``start`` on, or else any bytes."""

    kind: ClassVar[str] = "bytes"
    max_payload: ClassVar[int] = PIECE
    start: int = -1
    count: int = 0


SCHEMA = Schema(Bytes)


class Longest:
    """The longest wait for a lock, as training would have it that wants it all the time."""

    def __init__(self, state: OuterState) -> None:
        self._state = state
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.seconds = 0.0

    def _watch(self) -> None:
        while not self._stop.wait(0.002):
            began = time.perf_counter()
            with self._state.lock:
                self.seconds = max(self.seconds, time.perf_counter() - began)

    def __enter__(self) -> Longest:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


async def donor(folder: Path, n: int, *bootstrap: str) -> None:
    """Hold the state after one outer step, and serve it until standard input closes."""
    random = np.random.default_rng(0)
    state = OuterState.initial(random.standard_normal(n, np.float32))
    journal = Journal(folder / "journal")
    update = BlockVector.empty(n)
    quantise(random.standard_normal(n, np.float32) * np.float32(0.01), update)
    before = state.digest
    after = state.apply(update, 100, OUTER)
    journal.append(JournalEntry(0, before, after, 100, n), update)
    node = await Node.create(NodeConfig(folder / "identity.key", bootstrap))
    async with contextlib.AsyncExitStack() as opened:
        opened.push_async_callback(node.close)
        server = StateServer(node, RUN, Source(lambda: state, journal, {}, folder), STALL)
        await server.serve()
        await node.serve(RAW, SCHEMA, functools.partial(give_raw, state))
        with Longest(state) as wait:
            print(node.peer_id, (await node.addresses())[0], before.hex(), after.hex(), flush=True)
            await asyncio.to_thread(sys.stdin.read)
        print(f"{wait.seconds:.4f}", flush=True)


async def give_raw(state: OuterState, stream: Stream) -> None:
    asked = await stream.receive(stall=STALL)
    assert isinstance(asked, Bytes)
    small = memoryview(np.random.default_rng(0).bytes(PIECE))
    for start in range(0, asked.count, PIECE):
        count = min(PIECE, asked.count - start)
        part = small[:count] if asked.start < 0 else memory(state, asked.start + start, count)
        await stream.send(Bytes(), part, stall=STALL)


def memory(state: OuterState, start: int, count: int) -> memoryview:
    """Bytes of a state, as if the momentum followed the anchor; a piece that reaches into both is taken from one."""
    anchor, momentum = (array.view(np.uint8).data for array in (state.anchor, state.momentum))
    if start + count <= len(anchor):
        return anchor[start : start + count]
    start = max(0, start - len(anchor))
    return momentum[start : start + count]


async def take_raw(node: Node, peer: str, start: int, count: int, into: OuterState | None) -> None:
    stream = await node.open(peer, RAW, SCHEMA, STALL)
    small = memoryview(bytearray(PIECE))
    try:
        await stream.send(Bytes(start=-1 if into is None else start, count=count), stall=STALL)
        end = start + count
        while start < end:
            await stream.receive(stall=STALL)
            length = stream.payload_left
            buffer = small[:length] if into is None else memory(into, start, length)
            await stream.receive_into(buffer, stall=STALL)
            start += length
    finally:
        stream.abort()


async def raw(node: Node, peers: list[str], n: int, in_memory: bool) -> float:
    """Seconds for as many bytes as a snapshot has, a part from each peer."""
    into = new_state(n) if in_memory else None
    part = 8 * n // len(peers)
    began = time.perf_counter()
    await asyncio.gather(*(take_raw(node, peer, i * part, part, into) for i, peer in enumerate(peers)))
    return time.perf_counter() - began


def new_state(n: int) -> OuterState:
    """That of a joiner; a snapshot comes to its memory."""
    return OuterState.initial(np.zeros(n, np.float32))


@contextlib.contextmanager
def donors(folder: Path, n: int, count: int) -> Iterator[list[tuple[str, ...]]]:
    """Processes; gives what each of them printed."""
    started: list[subprocess.Popen[str]] = []
    said: list[tuple[str, ...]] = []
    try:
        for number in range(count):
            home = folder / f"donor-{number}"
            home.mkdir()
            command = [sys.executable, __file__, "--donor", str(home), "--parameters", str(n / 1e6)]
            command += ["--bootstrap", said[0][1]] if said else []
            started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            said.append(tuple(started[-1].stdout.readline().split()))  # type: ignore[union-attr]
        yield said
    finally:
        waits = [process.communicate()[0].strip() for process in started]
        print(f"  longest wait for the state's lock at a donor: {', '.join(waits)} s")


async def fetch(node: Node, peers: list[str], digest: bytes, n: int, folder: Path) -> tuple[OuterState, float]:
    shelf = Shelf(folder, lambda: None, Journal(folder / "journal"))
    client = StateClient(node, RUN, STALL)
    snapshots = Snapshots(client, shelf, lambda: peers, Standing())
    initial = new_state(n)
    began = time.perf_counter()
    state = await snapshots.fetch(digest, n, reach=8, arrays=(initial.anchor, initial.momentum))
    took = time.perf_counter() - began
    await shelf.close()
    return state, took


async def replay(node: Node, peer: str, n: int, folder: Path, digests: list[bytes]) -> None:
    state = OuterState.initial(np.random.default_rng(0).standard_normal(n, np.float32))
    assert state.digest == digests[0]
    client, journal = StateClient(node, RUN, STALL), Journal(folder / "journal")
    began, used = time.perf_counter(), _cpu()
    entry, update, _ = await client.update(peer, state.step, state.digest, n)
    Undo(state, folder)
    assert state.apply(update, entry.tokens, OUTER) == digests[1]
    journal.append(entry, update)
    took, used = time.perf_counter() - began, _cpu() - used
    share = client.bytes_received / (8 * n)
    print(f"  one missed update: {took:.2f} s, {used:.2f} CPU-s here, 1/{1 / share:.1f} of a snapshot's bytes")


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def measure(folder: Path, n: int, said: list[tuple[str, ...]], times: int) -> float:
    """Median seconds for a snapshot."""
    peers, digests = [line[0] for line in said], [bytes.fromhex(text) for text in said[0][2:]]
    (folder / "joiner").mkdir()
    node = await Node.create(NodeConfig(folder / "identity.key", (said[0][1],)))
    try:
        size = 8 * n
        for peer in peers:  # so that the connections are there
            await StateClient(node, RUN, STALL).offers(peer)
        snapshots, ratios = [], []
        for _ in range(times):
            raw_seconds, buffer_seconds = await raw(node, peers, n, True), await raw(node, peers, n, False)
            state, took = await fetch(node, peers, digests[1], n, folder / "joiner")
            assert state.digest == digests[1]
            print(
                f"  snapshot {size / took / 1e6:.0f} MB/s, raw streams {size / raw_seconds / 1e6:.0f} MB/s "
                f"({size / buffer_seconds / 1e6:.0f} from and to one buffer)"
            )
            snapshots.append(took)
            ratios.append((raw_seconds / took, buffer_seconds / took))
            del state
        memories, buffers = (statistics.median(ratio) for ratio in zip(*ratios, strict=True))
        print(f"  medians: {memories:.2f} of raw streams, {buffers:.2f} of those from and to one buffer")
        await replay(node, peers[0], n, folder / "joiner", digests)
        return statistics.median(snapshots)
    finally:
        await node.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=50.0, help="in millions")
    parser.add_argument("--donors", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--no-hivemind", action="store_true", help="do not measure hivemind's load_state_from_peers")
    parser.add_argument("--donor", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", help=argparse.SUPPRESS)
    options = parser.parse_args()
    n = int(options.parameters * 1e6)
    if options.donor:
        uvloop.run(donor(options.donor, n, *([options.bootstrap] if options.bootstrap else [])))
        return
    seconds = {}
    for count in options.donors:
        print(f"{n / 1e6:g} M parameters, {count} donors")
        with tempfile.TemporaryDirectory() as name, donors(Path(name), n, count) as said:
            seconds[count] = uvloop.run(measure(Path(name), n, said, options.times))
    if not options.no_hivemind:
        hiveminds = hivemind_state.measure(n)
        print(f"hivemind's load_state_from_peers, one donor: {8 * n / hiveminds / 1e6:.0f} MB/s ({hiveminds:.2f} s)")
        for count, ours in seconds.items():
            print(f"  ours from {count} donors: {hiveminds / ours:.1f} times as fast")


if __name__ == "__main__":
    main()
