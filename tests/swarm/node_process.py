"""A node in a process of its own, for tests that kill it.

    node_process.py IDENTITY PORT [BOOTSTRAP ...]

Prints its address; runs until its standard input closes. It serves `ECHO` and keeps one
record under "names". Each line that comes in has it print what it finds there: the names,
sorted; "set SECONDS" sets the machine's clock before, where `wrong_clock` runs this.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psutil
import uvloop

from prime_p2p.errors import PrimeError
from prime_p2p.network.frames import Message, Schema
from prime_p2p.network.node import Node, NodeConfig
from prime_p2p.network.streams import Stream

ECHO = "test/echo"
WRONG_CLOCK = str(Path(__file__).with_name("wrong_clock.py"))


class Data(Message):
    kind: ClassVar[str] = "data"
    max_payload: ClassVar[int] = 1 << 20


DATA = Schema(Data)


async def echo(stream: Stream) -> None:
    """Send every payload back."""
    while True:
        message = await stream.receive(stall=60)
        await stream.send(message, await stream.receive_payload(stall=60), stall=60)


@dataclass
class NodeProcess:
    process: asyncio.subprocess.Process
    address: str

    @property
    def peer_id(self) -> str:
        return self.address.rpartition("/")[2]

    @property
    def daemon(self) -> psutil.Process:
        (daemon,) = (child for child in psutil.Process(self.process.pid).children() if child.name() == "p2pd")
        return daemon

    async def stop(self) -> int:
        """Have the node close; returns the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return await asyncio.wait_for(self.process.wait(), 60)

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()

    async def names(self, change: str = "") -> list[str]:
        """The names it finds, once it has done what `change` says."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{change}\n".encode())
        return (await asyncio.wait_for(self.process.stdout.readline(), 60)).decode().split()


@asynccontextmanager
async def node_process(
    identity: Path, *bootstrap: str, port: int = 0, clock: float = 0.0, errors: int | None = None
) -> AsyncIterator[NodeProcess]:
    """Start a node and wait until it has joined. It is stopped at the end, unless the test has done so.

    Its standard error goes to the descriptor `errors`.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, WRONG_CLOCK, str(clock), __file__, str(identity), str(port), *bootstrap),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=errors,
        env=os.environ | {"TMPDIR": str(identity.parent)},
    )
    try:
        assert process.stdout is not None
        address = (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()
        assert address, "the node did not start"
        node = NodeProcess(process, address)
        yield node
        if process.returncode is None:
            await node.stop()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def main(identity: str, port: str, *bootstrap: str) -> None:
    node = await Node.create(NodeConfig(Path(identity), bootstrap, port=int(port)))
    await node.serve(ECHO, DATA, echo)
    await node.publish("names", {"name": Path(identity).name}, ttl=120)
    print((await node.addresses())[0], flush=True)
    while line := await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
        if line.startswith("set"):
            time.time.set(float(line.split()[1]))  # type: ignore[attr-defined]
            await node.publish("names", {"name": Path(identity).name}, ttl=120)
        print(*sorted(value["name"] for value in (await node.lookup("names")).values()), flush=True)
    await node.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    uvloop.install()
    try:
        asyncio.run(main(*sys.argv[1:]))
    except PrimeError as error:
        sys.exit(str(error))
