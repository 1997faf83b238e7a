"""Peers that come at the same instant find each other all, not only those that happen to come through the same door."""

from __future__ import annotations

import asyncio
from pathlib import Path

import nodes
import pytest
from nodes import address

from prime_p2p.network.node import Node, NodeConfig
from prime_p2p.swarm.membership import Heartbeat, Membership

pytestmark = pytest.mark.timeout(300)

PEERS = 8
TIMES = 8
AT_ONCE = 2  # swarms of eight that start beside each other, to keep the cores busy
SIGHT = 30.0  # seconds in which all see all: a few looks at the DHT and one heartbeat, on a very busy machine


class Arrival:
    """A peer that starts its node, joins, announces itself, and watches for the others of its run."""

    def __init__(self, folder: Path, run: str, number: int) -> None:
        self.node: Node | None = None
        self._folder = folder
        self._run = run
        self._name = f"{run}-{number}"
        self._membership: Membership | None = None
        self._all_seen = asyncio.Event()

    async def start(self, *bootstrap: str) -> str:
        """Returns its address."""
        self.node = await Node.create(NodeConfig(self._folder / self._name, bootstrap))
        return await address(self.node)

    async def see_all(self) -> None:
        assert self.node is not None
        self._membership = Membership(self.node, self._run, self._look)
        await self._membership.start(Heartbeat(name=self._name))
        try:
            await asyncio.wait_for(self._all_seen.wait(), SIGHT)
        except asyncio.TimeoutError:
            seen = sorted(beat.name for beat in self._membership.others.values())
            raise AssertionError(f"{self._name} sees only {seen}") from None

    def _look(self) -> None:
        if self._membership is not None and len(self._membership.others) == PEERS - 1:
            self._all_seen.set()

    async def close(self) -> None:
        if self._membership is not None:
            await self._membership.close()
        if self.node is not None:
            await self.node.close()


async def start_together(folder: Path, run: str, bootstrap: str | None) -> None:
    """Eight peers start at the same instant and see each other; without a bootstrap node, seven of them join by the
    address of the first at the instant at which it has one."""
    first, *others = arrivals = [Arrival(folder, run, number) for number in range(PEERS)]

    async def arrive(arrival: Arrival, *bootstrap: str) -> None:
        await arrival.start(*bootstrap)
        await arrival.see_all()

    try:
        if bootstrap is None:
            door = await first.start()
            await asyncio.gather(first.see_all(), *(arrive(other, door) for other in others))
        else:
            await asyncio.gather(*(arrive(arrival, bootstrap) for arrival in arrivals))
    finally:
        await asyncio.gather(*(arrival.close() for arrival in arrivals))


@pytest.mark.parametrize(("door", "times"), [("a bootstrap node", TIMES), ("the first of them", 2)])
def test_eight_peers_that_start_at_the_same_instant_all_see_each_other_every_time(door: str, times: int) -> None:
    async def test(swarm: nodes.Swarm) -> None:
        bootstrap = await address(await swarm.node("bootstrap")) if door == "a bootstrap node" else None
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(time: int) -> None:
            async with turns:
                await start_together(swarm.folder, f"run-{time}", bootstrap)

        await asyncio.gather(*(one(time) for time in range(times)))

    nodes.run(test)
