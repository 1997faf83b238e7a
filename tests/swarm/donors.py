"""States that outer steps are made on, and nodes that give them to others, in this process or in one of their own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import uvloop

from prime_p2p.allreduce.codec import BlockVector, quantise
from prime_p2p.long_work import Advance, ignore
from prime_p2p.network.node import Node, NodeConfig
from prime_p2p.outer.journal import Journal, JournalEntry
from prime_p2p.outer.nesterov import OuterOptimizer
from prime_p2p.outer.state import OuterState
from prime_p2p.state import backlog
from prime_p2p.state.backlog import Backlog
from prime_p2p.state.client import StateClient
from prime_p2p.state.snapshots import Snapshots
from prime_p2p.state.standing import Standing
from prime_p2p.state.transfer import ServingLimits, Source, StateServer

RUN = "run"
STALL = 20.0  # seconds: no test but those of frozen donors is about it
OUTER = OuterOptimizer()


class Lineage:
    """A state of ``n`` parameters with its journal; the same outer steps wherever it is made from the same seed."""

    def __init__(self, folder: Path, n: int, length: int = 16, bits: int = 8) -> None:
        self.n = n
        self.bits = bits
        self.folder = folder
        self._random = np.random.default_rng(0)
        self.state = OuterState.initial(self._random.standard_normal(n, np.float32))
        self.journal = Journal(folder, length)

    def outer_step(self) -> None:
        update = BlockVector.empty(self.n, self.bits)
        quantise(self._random.standard_normal(self.n, np.float32) * np.float32(0.01), update)
        step, before = self.state.step, self.state.digest
        after = self.state.apply(update, 100, OUTER)
        self.journal.append(JournalEntry(step, before, after, 100, self.n, self.bits), update)


async def serve(
    node: Node, lineage: Lineage | None, folder: Path, limits: ServingLimits | None = None, stall: float = STALL
) -> StateServer:
    """Have a node give the state of a lineage, or none."""
    await asyncio.to_thread(folder.mkdir, exist_ok=True)
    journal = lineage.journal if lineage else Journal(folder / "journal")
    description = {"model": {"parameters": lineage.n if lineage else 0}}
    source = Source(lambda: lineage.state if lineage else None, journal, description, folder, limits or ServingLimits())
    server = StateServer(node, RUN, source, stall)
    await server.serve()
    return server


class Joiner:
    """A node without a state that fetches one from ``peers``, which may change, and gives what it has on the way."""

    def __init__(self, node: Node, server: StateServer, peers: list[str], stall: float = STALL) -> None:
        self.node = node
        self.peers = peers
        self.shelf = server.shelf
        self.client = StateClient(node, RUN, stall)
        self.standing = Standing()
        self.snapshots = Snapshots(self.client, server.shelf, lambda: self.peers, self.standing)

    @classmethod
    async def on(cls, node: Node, folder: Path, peers: list[str], stall: float = STALL) -> Joiner:
        return cls(node, await serve(node, None, folder, stall=stall), peers, stall)

    async def fetch(self, digest: bytes, n: int, reach: int = 8, advance: Advance = ignore) -> OuterState:
        return await self.snapshots.fetch(digest, n, reach, advance=advance)


class _Process:
    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def line(self) -> str:
        """The next line it prints; empty when it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class DonorProcess(_Process):
    """A donor with a process and a daemon of its own. Every one made with the same figures holds the same state."""

    def __init__(self, folder: Path, n: int, bootstrap: str = "", rate: float = 0.0) -> None:
        super().__init__("donor", str(folder), str(n), str(rate), *([bootstrap] if bootstrap else []))

    def ready(self) -> DonorProcess:
        """Wait until it gives its state."""
        self.peer_id, self.address, digest = self.line().split()
        self.digest = bytes.fromhex(digest)
        return self


class JoinerProcess(_Process):
    """Fetches the state of a donor, and prints a line for each piece that is on its disk."""

    def __init__(self, folder: Path, donor: DonorProcess, n: int) -> None:
        super().__init__("joiner", str(folder), str(n), donor.address, donor.digest.hex())


async def _donor(folder: Path, n: int, rate: float, *bootstrap: str) -> None:
    lineage = Lineage(folder / "journal", n)
    lineage.outer_step()
    node = await Node.create(NodeConfig(folder / "identity.key", bootstrap))
    async with contextlib.AsyncExitStack() as opened:
        opened.push_async_callback(node.close)
        await serve(node, lineage, folder, ServingLimits(rate))
        print(node.peer_id, (await node.addresses())[0], lineage.state.digest.hex(), flush=True)
        await asyncio.to_thread(sys.stdin.read)  # until whoever started us closes it or is gone


async def _joiner(folder: Path, n: int, bootstrap: str, digest: bytes) -> None:
    write = Backlog._write

    def tell(writer: Backlog, index: int, data: memoryview) -> None:
        write(writer, index, data)
        print(index, flush=True)

    Backlog._write = tell  # type: ignore[method-assign]
    backlog.KEEP_AFTER = 0.0
    node = await Node.create(NodeConfig(folder / "identity.key", (bootstrap,)))
    async with contextlib.AsyncExitStack() as opened:
        opened.push_async_callback(node.close)
        joiner = await Joiner.on(node, folder, [bootstrap.rpartition("/")[2]])
        await joiner.fetch(digest, n)


def _main(kind: str, folder: str, n: str, *rest: str) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    if kind == "donor":
        uvloop.run(_donor(Path(folder), int(n), float(rest[0]), *rest[1:]))
    else:
        uvloop.run(_joiner(Path(folder), int(n), rest[0], bytes.fromhex(rest[1])))


if __name__ == "__main__":
    _main(*sys.argv[1:])
