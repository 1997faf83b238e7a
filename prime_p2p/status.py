"""A look at a run from outside: a node that joins only to read the heartbeats of the peers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import uvloop

from prime_p2p.errors import Unreachable
from prime_p2p.network.deadline import within
from prime_p2p.network.node import Node, NodeConfig
from prime_p2p.swarm import membership
from prime_p2p.temporary import TemporaryFolder

LOOK_DEADLINE = 30.0  # seconds for the look-ups, once the node has joined


def look(bootstrap: Sequence[str], run: str | None) -> list[dict[str, Any]]:
    """The peers of one run, or of all that are known, as ``swarm.membership.status`` describes them.

    Raises:
        BadInput: An address cannot be used.
        Unreachable: Nobody answered.
    """
    return uvloop.run(_look(tuple(bootstrap), run))


async def _look(bootstrap: tuple[str, ...], run: str | None) -> list[dict[str, Any]]:
    with TemporaryFolder() as folder:
        node = await Node.create(NodeConfig(identity=folder / "identity.key", bootstrap=bootstrap))
        try:
            return await within(LOOK_DEADLINE, membership.status(node, run))
        except asyncio.TimeoutError:
            raise Unreachable(f"the look-up was not answered within {LOOK_DEADLINE:.0f} s; try again") from None
        finally:
            await node.close()
