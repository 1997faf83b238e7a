"""What announcing costs: a bootstrap node its memory, processor time and traffic, and each peer its traffic.

python scripts/bootstrap_cost.py [--peers 4 8 16] [--seconds 60] [--processes 4] [--keeps yes no]

The peers keep heartbeats and look at those of the others as training ones do, and train nothing; they have a libp2p
daemon each and share some processes of Python. They are on a host of their own (a network namespace), so that what is
counted is the node's own traffic. The DHT keeps the heartbeats of a run with the five peers nearest to its name: with
`--keeps yes` the node is one of them, and with `--keeps no` it is not. "looks" says how many of the looks that are due
the peers had time for: where it is well below 1, this machine is too slow for so many.

Beside what was measured stands what `prime_p2p/bench/announcing.py` calculates for a node that keeps the heartbeats;
below it what it calculates for one peer, for these numbers of peers and for more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psutil
import uvloop

from prime_p2p.bench.announcing import of_a_keeper, of_a_peer
from prime_p2p.bench.tables import table
from prime_p2p.errors import PrimeError
from prime_p2p.lab.hosts import Hosts, enclosed, on_host
from prime_p2p.network._hivemind import DHTID
from prime_p2p.network.daemon import DaemonError
from prime_p2p.network.node import Node, NodeConfig
from prime_p2p.network.records import PREFIX
from prime_p2p.swarm.membership import Heartbeat, Membership, look_pause, peers_key

NAMES = 4000  # names of runs to choose from: the nearest one is nearer to the node than any peer is
START = 10.0  # seconds for one more peer to be there, on a busy machine
TRIES = 3  # to start one
SETTLE = 10.0  # seconds until everybody knows everybody
END = 20.0
CALCULATED = [10, 100, 1000]  # peers
HEAD = ["peers", "keeps them", "Python MB", "daemon MB", "processor", "in kB/s", "out kB/s", "looks", "calculated"]


@dataclass(frozen=True)
class Usage:
    """What a bootstrap node has used, or uses."""

    seconds: float
    processor: float
    received: int
    sent: int

    @classmethod
    def of(cls, processes: list[psutil.Process]) -> Usage:
        times = [process.cpu_times() for process in processes]
        network = Path(f"/proc/{processes[0].pid}/net/dev").read_text().split("eth0:")[1].split()
        processor = sum(one.user + one.system for one in times)
        return cls(time.monotonic(), processor, int(network[0]), int(network[8]))


@dataclass(frozen=True)
class Cost:
    """What a node took for so many peers: MB, a share of a processor, kB/s."""

    peers: int
    keeps: bool
    memory: tuple[float, float]
    processor: float
    received: float
    sent: float
    looks: float

    @property
    def row(self) -> list[str]:
        memory, network = (f"{one:.0f}" for one in self.memory), (f"{one:.1f}" for one in (self.received, self.sent))
        row = [str(self.peers), "yes" if self.keeps else "no", *memory, f"{self.processor:.0%}", *network]
        keeper = of_a_keeper(self.peers)
        calculated = f"{keeper.received / 1e3:.1f}, {keeper.sent / 1e3:.1f}" if self.keeps else ""
        return [*row, f"{self.looks:.2f}", calculated]


# ---- the peers


class LightPeer:
    """A node with a heartbeat."""

    def __init__(self, node: Node, run: str) -> None:
        self._node = node
        self.looks = 0
        self._membership = Membership(node, run, self._looked)

    def _looked(self) -> None:
        self.looks += 1

    @classmethod
    async def start(cls, config: NodeConfig, run: str) -> LightPeer:
        peer = cls(await started_node(config), run)
        addresses = await peer._node.addresses()
        beat = Heartbeat(step=100, digest=bytes(32), description=bytes(32), state="training", addresses=addresses[:8])
        await peer._membership.start(beat)
        return peer

    async def close(self) -> None:
        await self._membership.close()
        await self._node.close()


async def started_node(config: NodeConfig) -> Node:
    """A node; where the machine is so busy that a daemon starts too late, another one is."""
    for _ in range(TRIES - 1):
        with contextlib.suppress(DaemonError):
            return await Node.create(config)
    return await Node.create(config)


async def light_peers(run: str, host: str, bootstrap: str) -> None:
    """Be as many peers as the last line of standard input says, until it closes.

    A line is answered, when all of them are there, with the looks that they took so far.
    """
    loop = asyncio.get_running_loop()
    peers: list[LightPeer] = []
    with tempfile.TemporaryDirectory() as folder:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            for number in range(len(peers), int(line)):
                config = NodeConfig(Path(folder) / str(number), (bootstrap,), (host,))
                peers.append(await LightPeer.start(config, run))
            print(sum(peer.looks for peer in peers), flush=True)
        await asyncio.gather(*(peer.close() for peer in peers))


# ---- the measurement


def run_name(bootstrap: str, near: bool) -> str:
    """Of many names the one whose heartbeats belong nearest to the node, or furthest away."""
    node = DHTID.generate(bootstrap.rpartition("/")[2])

    def distance(name: str) -> int:
        return int(node.xor_distance(DHTID.generate(PREFIX + peers_key(name))))

    names = (f"cost-{number}" for number, _ in zip(count(), range(NAMES), strict=False))
    return min(names, key=lambda name: distance(name) * (1 if near else -1))


@contextlib.contextmanager
def running(host: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program of Python's on a host of the lab, which ends when its standard input closes."""
    command = on_host(host, [sys.executable, *arguments])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
            assert process.stdin is not None
            process.stdin.close()
            process.wait(END)
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    """The next line of a process; it has a limit of time as the whole lab has."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise PrimeError("a process of the lab has ended")
    return line


def looks_of(groups: list[subprocess.Popen[str]], peers: int) -> int:
    """The looks that all peers took so far, when there are so many of them."""
    for number, group in enumerate(groups):
        assert group.stdin is not None
        group.stdin.write(f"{peers // len(groups) + (number < peers % len(groups))}\n")
        group.stdin.flush()
    return sum(int(said(group)) for group in groups)


def measured(hosts: Hosts, options: argparse.Namespace, near: bool) -> Iterator[Cost]:
    """Run a node, and more and more peers."""
    with contextlib.ExitStack() as started, tempfile.TemporaryDirectory() as folder:
        key = str(Path(folder) / "key")
        place = ["--host", hosts.address("bootstrap"), "--port", "0", "--identity", key, "--stop-with-parent"]
        node = started.enter_context(running("bootstrap", "-m", "prime_p2p.cli", "bootstrap", *place))
        address = said(node)
        be = [__file__, "--be", run_name(address, near), hosts.address("peers"), address]
        groups = [started.enter_context(running("peers", *be)) for _ in range(options.processes)]
        ours = psutil.Process(node.pid)
        processes = [ours, *(child for child in ours.children(recursive=True) if child.name() == "p2pd")]
        for peers in sorted(options.peers):
            looks_of(groups, peers)
            time.sleep(SETTLE)
            looks = -looks_of(groups, peers)
            before = Usage.of(processes)
            time.sleep(options.seconds)
            after = Usage.of(processes)
            looks += looks_of(groups, peers)
            memory = [process.memory_info().rss / 1e6 for process in processes]
            seconds = after.seconds - before.seconds
            yield Cost(
                peers,
                near,
                (memory[0], sum(memory[1:])),
                (after.processor - before.processor) / seconds,
                (after.received - before.received) / seconds / 1e3,
                (after.sent - before.sent) / seconds / 1e3,
                looks * look_pause(peers - 1) / peers / seconds,
            )


def inside(options: argparse.Namespace) -> None:
    hosts = Hosts([["bootstrap", "peers"]])
    try:
        costs = []
        for keeps in options.keeps:
            for cost in measured(hosts, options, keeps == "yes"):
                costs.append(cost)
                print(*cost.row, file=sys.stderr, flush=True)
    finally:
        hosts.close()
    print("\n".join(table(HEAD, [cost.row for cost in costs])))
    for peers in sorted({*options.peers, *CALCULATED}):
        print(f"calculated for one of {peers} peers: {of_a_peer(peers).minute:.2f} MB a minute, in and out")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--seconds", type=float, default=60.0, help="that are measured, for each row")
    parser.add_argument("--processes", type=int, default=4, help="that the peers are spread over")
    parser.add_argument("--keeps", nargs="+", choices=["yes", "no"], default=["yes", "no"], help="see above")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--be", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        if options.be:
            uvloop.run(light_peers(*options.be))
        elif options.inside:
            inside(options)
        else:
            limit = len(options.keeps) * (
                max(options.peers) * START + len(options.peers) * (options.seconds + SETTLE) + END
            )
            command = enclosed([sys.executable, __file__, "--inside", *sys.argv[1:]])
            return subprocess.run(command, timeout=limit).returncode
    except PrimeError as error:
        print(f"bootstrap_cost: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
