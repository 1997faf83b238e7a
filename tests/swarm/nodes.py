"""Nodes of one test, in its own process, with daemons of their own."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import uvloop
from node_process import DATA, ECHO, Data

from prime_p2p.network.identity import Identity
from prime_p2p.network.node import Node, NodeConfig

PATIENCE = 60.0  # seconds: far above what is needed, since the machine may be busy


class Swarm:
    """Starts nodes, whose files are in `folder`, and closes them at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Swarm:
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self._opened.aclose()

    async def node(self, name: str, *bootstrap: str, **options: Any) -> Node:
        node = await Node.create(NodeConfig(self.folder / name, bootstrap, **options))
        self._opened.push_async_callback(node.close)
        return node

    def peer_id(self, name: str) -> str:
        """The peer id that a node of this name has or would have."""
        return Identity.load_or_create(self.folder / name).peer_id

    def socket_folders(self) -> list[Path]:
        """Where nodes keep the sockets to their daemons."""
        return list(self.folder.glob("prime-p2p-*"))


def daemons() -> list[psutil.Process]:
    """The daemons of nodes in this process; one that has ended and was not waited for yet is no daemon any more."""
    ended = psutil.STATUS_ZOMBIE
    return [child for child in psutil.Process().children() if child.name() == "p2pd" and child.status() != ended]


def run(test: Callable[[Swarm], Coroutine[Any, Any, None]]) -> None:
    """Run a test on uvloop; afterwards no daemon and no socket is left."""
    with tempfile.TemporaryDirectory(prefix="pp", dir="/tmp") as name, mock.patch.object(tempfile, "tempdir", name):
        swarm = Swarm(Path(name))

        async def whole() -> None:
            async with swarm:
                await test(swarm)

        loop = uvloop.new_event_loop()
        try:
            loop.run_until_complete(whole())
            assert not daemons()
            assert not swarm.socket_folders()
        finally:
            loop.close()


async def until(condition: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    """Wait for something that others bring about."""
    deadline = time.monotonic() + PATIENCE
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


async def address(node: Node) -> str:
    return (await node.addresses())[0]


async def echoes(node: Node, peer_id: str, payload: bytes = b"hello", protocol: str = ECHO) -> bool:
    """Whether a peer that serves `ECHO`, or this protocol, sends back what it is sent."""
    stream = await node.open(peer_id, protocol, DATA, timeout=PATIENCE)
    try:
        await stream.send(Data(), payload, stall=PATIENCE)
        await stream.receive(stall=PATIENCE)
        return await stream.receive_payload(stall=PATIENCE) == payload
    finally:
        stream.close()
        await stream.wait_closed()
