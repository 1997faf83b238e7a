"""A look at a run from outside: a node that joins only to read the heartbeats of the peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prime_p2p.network.node import Node
from prime_p2p.network.visit import on_a_node
from prime_p2p.swarm import membership

LOOK_DEADLINE = 30.0  # seconds for the look-ups, once the node has joined


def look(bootstrap: Sequence[str], run: str | None) -> list[dict[str, Any]]:
    """The peers of one run, or of all that are known, as ``swarm.membership.status`` describes them.

    Raises:
        BadInput: An address cannot be used, the run is not known there, or it is not clear which is meant.
        Unreachable: Nobody answered.
    """

    async def ask(node: Node) -> list[dict[str, Any]]:
        known = await membership.runs(node)
        wanted = known if run is None else [membership.which(known, run)]
        return [row for name in wanted for row in await membership.status(node, name)]

    return on_a_node(bootstrap, ask, LOOK_DEADLINE)
