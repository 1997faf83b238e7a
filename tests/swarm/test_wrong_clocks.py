"""Nodes whose machines' clocks are wrong: in processes of their own, with a `time.time` that is."""

from __future__ import annotations

import re
import tempfile
import time

import pytest
from node_process import DATA, ECHO, echo, node_process
from nodes import Swarm, address, echoes, run, until

from prime_p2p.network import board, clock

SLACK = 10.0  # seconds that a clock may be measured wrong on a busy machine


def said(log: str, reason: str) -> float:
    """By how much a log says that the machine's clock is ahead."""
    (found,) = re.findall(f"the clock of this machine is ([0-9.]+) s (ahead of|behind) {re.escape(reason)}", log)
    return float(found[0]) if found[1] == "ahead of" else -float(found[0])


@pytest.mark.parametrize("ahead", [40.0, -40.0, 500.0, -500.0])
def test_a_node_with_a_wrong_clock_joins_finds_and_is_found(ahead: float) -> None:
    async def test(swarm: Swarm) -> None:
        right = await swarm.node("right")
        await right.serve(ECHO, DATA, echo)
        await right.publish("names", {"name": "right"}, ttl=20)
        here = await address(right)
        with tempfile.TemporaryFile("w+") as errors:
            async with node_process(swarm.folder / "wrong", here, clock=ahead, errors=errors.fileno()) as wrong:
                assert await wrong.names() == ["right", "wrong"]
                assert {value["name"] for value in (await right.lookup("names")).values()} == {"right", "wrong"}
                assert await echoes(right, wrong.peer_id)
                # A third one hears the same time from both.
                async with node_process(swarm.folder / "late", here, wrong.address, clock=-ahead) as late:
                    assert await late.names() == ["late", "right", "wrong"]
                    assert await wrong.names() == ["late", "right", "wrong"]
            errors.seek(0)
            assert said(errors.read(), "the swarm's; going by the swarm's") == pytest.approx(ahead, abs=SLACK)

    run(test)


@pytest.mark.parametrize("ahead", [4000.0, -4000.0])
def test_a_node_with_a_clock_that_is_too_wrong_is_told_so_in_one_line(ahead: float) -> None:
    async def test(swarm: Swarm) -> None:
        right = await swarm.node("right")
        with tempfile.TemporaryFile("w+") as errors:
            with pytest.raises(AssertionError, match="the node did not start"):
                async with node_process(
                    swarm.folder / "wrong", await address(right), clock=ahead, errors=errors.fileno()
                ):
                    pass
            errors.seek(0)
            (line,) = errors.read().splitlines()
        reason = "the swarm's, more than the 600 s that are made up for; set it, for example with NTP, and start again"
        assert said(line, reason) == pytest.approx(ahead, abs=SLACK)

    run(test)


def test_a_node_whose_time_has_drifted_follows_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "_KEEP_EVERY", 0.5)

    async def test(swarm: Swarm) -> None:
        node = await swarm.node("node")
        here = await address(node)
        async with node_process(swarm.folder / "one", here), node_process(swarm.folder / "two", here):
            monkeypatch.setattr(clock._clock, "_base", clock._clock._base - 60.0)

            async def followed() -> bool:
                return abs(clock.now() - time.time()) < SLACK

            await until(followed)

    run(test)


def test_a_clock_that_is_set_while_a_node_runs_moves_nothing() -> None:
    async def test(swarm: Swarm) -> None:
        right = await swarm.node("right")
        here = await address(right)
        async with node_process(swarm.folder / "one", here) as one, node_process(swarm.folder / "two", here) as two:
            for step in (3600.0, -3600.0):
                assert await one.names(f"set {step}") == ["one", "two"]
                assert await two.names() == ["one", "two"]

    run(test)
