"""What being watched costs a peer: processor time and bytes, for some numbers of watchers.

python scripts/watching_cost.py [--watchers 0 1 16] [--seconds 20] [--group 8]

One process is the peer: a node that serves its news, and has news of an outer step of a group each second, as a peer of
a tiny model has; it trains nothing. The watchers are streams from this process, which ask as ``prime-p2p watch`` does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import base58
import psutil
import uvloop

from prime_p2p.bench.tables import table
from prime_p2p.bulletin.bulletin import Bulletin
from prime_p2p.bulletin.messages import NEWS, AskNews, NewsLines, protocol
from prime_p2p.bulletin.serving import NewsServer
from prime_p2p.monitor.metrics import PhaseSeconds, RoundMetrics
from prime_p2p.network.node import Node, NodeConfig, peer_of
from prime_p2p.network.streams import Stream
from prime_p2p.temporary import TemporaryFolder
from prime_p2p.watching.watcher import ASK_EVERY

RUN = "cost"
PATIENCE = 10.0  # seconds for whatever is waited for
HEAD = ["watchers", "Python, % of a core", "daemon, % of a core", "kB a minute to each"]


@contextlib.asynccontextmanager
async def node(bootstrap: tuple[str, ...] = ()) -> AsyncIterator[Node]:
    with TemporaryFolder() as folder:
        one = await Node.create(NodeConfig(folder / "identity.key", bootstrap))
        try:
            yield one
        finally:
            await one.close()


async def be_watched(group: int) -> None:
    """Serve news until standard input closes."""
    bulletin = Bulletin()
    peers = tuple(
        base58.b58encode(b"\x00\x24\x08\x01\x12\x20" + secrets.token_bytes(32)).decode() for _ in range(group)
    )
    async with node() as served:
        await NewsServer(served, RUN, bulletin).serve()
        print((await served.addresses())[0], flush=True)
        closed = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
        step = 0
        while not closed.done():
            step += 1
            bulletin.outer_step(_step(step, peers))
            await asyncio.wait([closed], timeout=1.0)


def _step(number: int, peers: tuple[str, ...]) -> RoundMetrics:
    seconds = PhaseSeconds(0.9123, 0.0123, 0.0456, 0.0078, 0.0012, 0.9812)
    weights = (20480,) * len(peers)
    return RoundMetrics(number, secrets.token_hex(32), peers, weights, 1, 1.23456, 20480, 10**6, 10**6, seconds, 1.3)


async def watch(one: Node, peer: str, until: float) -> int:
    """Ask as a watcher does; returns the bytes that came."""
    stream: Stream = await one.open(peer, protocol(RUN), NEWS, timeout=PATIENCE)
    session, last = b"", 0
    try:
        while time.monotonic() < until:
            await stream.send(AskNews(session=session, after=last), stall=PATIENCE)
            answer = await stream.receive(stall=PATIENCE)
            assert isinstance(answer, NewsLines)
            await stream.receive_payload(stall=PATIENCE)
            session, last = answer.session, answer.last
            await asyncio.sleep(ASK_EVERY)
        return stream.bytes_received
    finally:
        stream.close()


async def measure(peer: subprocess.Popen[str], address: str, watchers: int, seconds: float) -> list[str]:
    python = psutil.Process(peer.pid)
    (daemon,) = (child for child in python.children() if child.name() == "p2pd")
    async with node((address,)) as one:
        await asyncio.sleep(2.0)  # what joining costs is over
        before, began = [_spent(process) for process in (python, daemon)], time.monotonic()
        asking = [watch(one, peer_of(address), began + seconds) for _ in range(watchers)]
        received = await asyncio.gather(*asking, asyncio.sleep(seconds, 0))
        took = time.monotonic() - began
        spent = [_spent(process) - start for process, start in zip((python, daemon), before, strict=True)]
    each = sum(received) / max(1, watchers)
    return [str(watchers), *(f"{100 * part / took:.2f}" for part in spent), f"{each / took * 60 / 1e3:.1f}"]


def _spent(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)


def main(watchers: list[int], seconds: float, group: int) -> None:
    command = [sys.executable, str(Path(__file__)), "--be-watched", "--group", str(group)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdin is not None
        assert peer.stdout is not None
        try:
            address = peer.stdout.readline().strip()
            rows = [uvloop.run(measure(peer, address, count, seconds)) for count in watchers]
        finally:
            peer.stdin.close()
    print("\n".join(table(HEAD, rows)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--watchers", type=int, nargs="+", default=[0, 1, 16])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--group", type=int, default=8, help="peers of each group")
    parser.add_argument("--be-watched", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be_watched:
        uvloop.run(be_watched(options.group))
    else:
        main(options.watchers, options.seconds, options.group)
