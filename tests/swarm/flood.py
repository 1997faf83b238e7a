"""Many TCP connections from one address that say nothing, in a process of their own, which may have so many files.

    flood.py PORT COUNT

Prints a line when all have been asked for, and holds them until its standard input closes.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

_OTHERS = 1000  # files of the daemon beside the connections
MOST = min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - _OTHERS)


@asynccontextmanager
async def flood(node_address: str) -> AsyncIterator[None]:
    """``MOST`` connections to a node on loopback: 10,000, or as many as this machine lets its daemon take."""
    arguments = [__file__, node_address.split("/")[4], str(MOST)]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=PIPE, stdout=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await process.stdout.readline()
        yield
    finally:
        process.stdin.close()
        await process.wait()


def _main(port: int, count: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as opened:
        for _ in range(count):
            one = opened.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        print("open", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _main(*map(int, sys.argv[1:]))
