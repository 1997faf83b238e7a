"""Rounds leave nothing behind, whether they commit or fail: no memory, no task, no stream, no descriptor.

Processes have the 1024 descriptors that most systems give them."""

from __future__ import annotations

import asyncio
import gc
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import nodes
import psutil
import pytest
from round_peers import FIRST, RoundPeer, State, one_round, round_peers, state_after

from prime_p2p.allreduce.butterfly import Reduced
from prime_p2p.network.frames import Message
from prime_p2p.network.pipe import Pipe
from prime_p2p.network.streams import Stream

pytestmark = pytest.mark.timeout(240)


@dataclass(frozen=True)
class Left:
    """What this process and the daemons of its nodes hold."""

    memory: int
    tasks: int
    streams: int
    descriptors: int
    of_daemons: int

    @staticmethod
    def now() -> Left:
        gc.collect()
        alive = gc.get_objects()
        process = psutil.Process()
        return Left(
            process.memory_info().rss,
            len(asyncio.all_tasks()),
            sum(isinstance(thing, (Stream, Pipe)) for thing in alive),
            process.num_fds(),
            sum(daemon.num_fds() for daemon in nodes.daemons()),
        )


async def settled(before: Left, count: int) -> Left:
    """What is left once streams that were closed are gone: both ends of one need a moment for that."""
    left = Left.now()

    async def no_more_than_before() -> bool:
        nonlocal left
        left = Left.now()
        slack = 2 * count  # a Ping or a heartbeat of the DHT may be on its way
        return (
            left.tasks <= before.tasks + slack
            and left.streams <= before.streams + slack
            and left.descriptors <= before.descriptors + slack
            and left.of_daemons <= before.of_daemons + 4 * slack
        )

    try:
        await nodes.until(no_more_than_before)
    except AssertionError:
        raise AssertionError(f"{before} has become {left}") from None
    return left


async def rounds(peers: list[RoundPeer], state: State, count: int) -> tuple[State, int, int]:
    """So many tries to make an outer step, each from a new state. Returns the last one, how many groups failed on the
    way, and how often a peer missed."""
    failed, missed = 0, 0
    for _ in range(count):
        results = await one_round(peers, state)
        failed += max(result.attempts for result in results) - 1
        missed += sum(result.group is None for result in results)
        groups = {result.group for result in results if result.group is not None}
        failed += max(0, len(groups) - 1)
        state = (
            state_after(min(groups, key=lambda group: group.id)) if groups else (state[0] + 1, bytes(state[1][::-1]))
        )
    return state, failed, missed


def limit_descriptors(most: int) -> None:
    """Of this process, and of its daemons, which would take more where they may."""
    for process in (psutil.Process(), *nodes.daemons()):
        hard = most if process.name() == "p2pd" else resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (most, hard))


@pytest.fixture(autouse=True)
def limits() -> Iterator[None]:
    former = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, former)


def leave_nothing(peer_count: int, warm_up: int, count: int, check: Callable[[int, int], None]) -> None:
    async def test(swarm: nodes.Swarm) -> None:
        peers = await round_peers(swarm, peer_count)
        try:
            limit_descriptors(1024)
            state, _, _ = await rounds(peers, FIRST, warm_up)
            before = Left.now()
            _, failed, missed = await rounds(peers, state, count)
            check(failed, missed)
            after = await settled(before, peer_count)
            assert after.memory < 1.05 * before.memory, f"{before} has become {after}"
        finally:
            await asyncio.gather(*(peer.runner.close() for peer in peers))

    nodes.run(test)


def test_a_thousand_committed_rounds_leave_nothing_behind() -> None:
    def check(failed: int, missed: int) -> None:
        assert failed + missed < 20  # on a machine so busy that a peer seems frozen, a few

    leave_nothing(peer_count=2, warm_up=100, count=1000, check=check)


def test_three_hundred_failing_rounds_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every data stream breaks in the middle of the frame of a reduced chunk, on every attempt."""
    whole = Stream.send

    async def send(stream: Stream, message: Message, *buffers: Any, stall: float) -> None:
        if not isinstance(message, Reduced):
            await whole(stream, message, *buffers, stall=stall)
            return
        await stream._pipe.write([stream.schema.encode(message, sum(map(len, buffers)))], stall)
        stream.abort()

    monkeypatch.setattr(Stream, "send", send)

    def check(failed: int, missed: int) -> None:
        assert failed >= 300  # how many peers then miss the step, and how many make one alone, is left to chance

    leave_nothing(peer_count=3, warm_up=30, count=150, check=check)
