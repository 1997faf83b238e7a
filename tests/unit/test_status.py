"""A look at runs from outside, at a node that knows some."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from prime_p2p import status
from prime_p2p.errors import BadInput
from prime_p2p.network.node import Node
from prime_p2p.swarm import membership
from prime_p2p.swarm.membership import Heartbeat

KNOWN = {"demo/author": {"a": Heartbeat(step=3)}, "other": {"b": Heartbeat(step=5)}, "quiet": {}}


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    async def runs(node: Node) -> list[str]:
        return list(KNOWN)

    async def heartbeats(node: Node, run: str) -> dict[str, Heartbeat]:
        return KNOWN[run]

    def on_a_node(bootstrap: object, ask: Callable[[Node], Awaitable[Any]], deadline: float) -> Any:
        async def asked() -> Any:
            return await ask(cast(Node, None))

        return asyncio.run(asked())

    monkeypatch.setattr(membership, "runs", runs)
    monkeypatch.setattr(membership, "heartbeats", heartbeats)
    monkeypatch.setattr(status, "on_a_node", on_a_node)


def seen(run: str | None) -> list[tuple[str, str, int]]:
    return [(row["run"], row["peer_id"], row["outer_step"]) for row in status.look(["x"], run)]


def test_the_peers_of_all_runs_are_seen_or_of_the_one_that_is_wanted() -> None:
    assert seen(None) == [("demo/author", "a", 3), ("other", "b", 5)]
    assert seen("demo") == seen("demo/author") == [("demo/author", "a", 3)]
    assert seen("quiet") == []


def test_a_run_that_is_not_known_is_told_with_those_that_are() -> None:
    with pytest.raises(BadInput, match=r"^run nosuch is not known there; known are: demo/author, other, quiet$"):
        seen("nosuch")
