"""A look at a run from outside: a node that joins only to read the heartbeats of the peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prime_p2p.network.visit import on_a_node
from prime_p2p.swarm import membership

LOOK_DEADLINE = 30.0  # seconds for the look-ups, once the node has joined


def look(bootstrap: Sequence[str], run: str | None) -> list[dict[str, Any]]:
    """The peers of one run, or of all that are known, as ``swarm.membership.status`` describes them.

    Raises:
        BadInput: An address cannot be used.
        Unreachable: Nobody answered.
    """
    return on_a_node(bootstrap, lambda node: membership.status(node, run), LOOK_DEADLINE)
