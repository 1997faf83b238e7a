"""A short visit to the network, for commands that ask or say something and end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import uvloop

from prime_p2p.errors import Unreachable
from prime_p2p.network.deadline import within
from prime_p2p.network.node import Node, NodeConfig
from prime_p2p.temporary import TemporaryFolder

DEADLINE = 60.0  # seconds for all that is asked, once the node has joined

Result = TypeVar("Result")


def on_a_node(bootstrap: Sequence[str], use: Callable[[Node], Awaitable[Result]], deadline: float = DEADLINE) -> Result:
    """What ``use`` gives, which is called with a node that has joined and is closed afterwards.

    Raises Unreachable where nobody answers in time, and what the node or ``use`` raises.
    """

    async def main() -> Result:
        with TemporaryFolder() as folder:
            node = await Node.create(NodeConfig(folder / "identity.key", tuple(bootstrap)))
            try:
                return await within(deadline, use(node))
            except asyncio.TimeoutError:
                raise Unreachable(f"the DHT did not answer within {deadline:.0f} s; try again") from None
            finally:
                await node.close()

    return uvloop.run(main())
