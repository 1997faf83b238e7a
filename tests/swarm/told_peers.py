"""Peers that train nothing, in a process of their own: each has a heartbeat, and tells watchers of outer steps.

    told_peers.py [--location LAT,LON] FOLDER RUN COUNT [BOOTSTRAP]

Prints the address of the first of them; they make an outer step every second, until standard input closes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

from prime_p2p.bulletin.bulletin import Bulletin
from prime_p2p.bulletin.serving import NewsServer
from prime_p2p.monitor.events import Progress, State
from prime_p2p.monitor.metrics import PhaseSeconds, RoundMetrics
from prime_p2p.network.node import Node, NodeConfig
from prime_p2p.swarm.location import Location
from prime_p2p.swarm.membership import Membership, first_heartbeat

INNER_STEPS = 100


def digest(step: int) -> bytes:
    return step.to_bytes(32, "little")


class ToldPeer:
    """One peer on its node."""

    def __init__(self, node: Node, run: str, name: str, location: Location | None) -> None:
        self.node = node
        self.membership = Membership(node, run, lambda: None)
        self.bulletin = Bulletin()
        self._server = NewsServer(node, run, self.bulletin)
        self._name, self._location = name, location

    async def start(self) -> None:
        await self._server.serve()
        addresses = await self.node.addresses()
        await self.membership.start(first_heartbeat(b"", self._name, addresses, self._location))

    def outer_step(self, step: int) -> None:
        """It has made one, alone."""
        tokens = 10 * step
        self.membership.update(step=step, digest=digest(step), tokens=tokens, state="training", expected=True)
        seconds = PhaseSeconds(inner=0.9, reduce=0.1, total=1.0)
        loss = 5.0 / step
        alone = ((self.node.peer_id,), (10,))
        made = RoundMetrics(step, digest(step).hex(), *alone, 1, loss, 10, 1000, 1000, seconds)
        self.bulletin.outer_step(made)
        self.bulletin.progress(Progress(step, 40, INNER_STEPS, loss, 123.0, 1, 1000 * step, State.TRAINING))


async def main(folder: Path, run: str, count: int, bootstrap: list[str], location: Location | None) -> None:
    loop = asyncio.get_running_loop()
    closed = loop.run_in_executor(None, sys.stdin.read)
    async with contextlib.AsyncExitStack() as opened:
        peers: list[ToldPeer] = []
        for number in range(count):
            known = bootstrap or ((await peers[0].node.addresses())[:1] if peers else ())
            name = f"{folder.name}-{number}"
            node = await Node.create(NodeConfig(folder / name, tuple(known), may_be_first=not known))
            opened.push_async_callback(node.close)
            peers.append(ToldPeer(node, run, name, location))
            await peers[-1].start()
            opened.push_async_callback(peers[-1].membership.close)
        print((await peers[0].node.addresses())[0], flush=True)
        step = 0
        while not closed.done():
            step += 1
            for peer in peers:
                peer.outer_step(step)
            await asyncio.wait([closed], timeout=1.0)


@contextmanager
def told_peers(
    folder: Path, run: str, count: int, *bootstrap: str, location: str = ""
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process of such peers, and the address of the first; they leave at the end, unless they were killed."""
    folder.mkdir()
    options = [f"--location={location}"] if location else []
    command = [sys.executable, __file__, *options, str(folder), run, str(count), *bootstrap]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            assert address, "the peers did not start"
            yield process, address
        finally:
            process.stdin.close()
            process.wait(60)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--location", type=Location.of)
    parser.add_argument("folder", type=Path)
    parser.add_argument("run")
    parser.add_argument("count", type=int)
    parser.add_argument("bootstrap", nargs="*")
    uvloop.run(main(**vars(parser.parse_args())))
