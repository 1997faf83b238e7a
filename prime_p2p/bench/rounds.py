"""Teams of processes that make rounds, measured side by side: one round of each team after the other."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from prime_p2p.allreduce.codec import BITS, wire_bytes
from prime_p2p.bench.contender import CONTENDERS
from prime_p2p.bench.team import Answer, Team, WorkerFailed
from prime_p2p.temporary import TemporaryFolder

ROUND_WITHIN = 900.0
WARM_UP = 1  # rounds that are not counted: connections are opened in them, and memory is used for the first time

Say = Callable[[str], None]


@dataclass(frozen=True)
class Setup:
    """``peers`` processes that hold vectors of ``params`` elements and make ``rounds`` rounds.

    ``places`` are the host of each peer in a lab and its address there; without them all are on loopback.
    ``bandwidths`` are each peer's, in any one unit: its part of the vector grows with it.
    """

    peers: int
    params: int
    rounds: int = 5
    codec: str = "int8"
    threads: int = 1
    bandwidths: tuple[float, ...] = ()
    places: tuple[tuple[str, str], ...] = ()

    @property
    def bytes_of_vector(self) -> int:
        """As it travels."""
        return wire_bytes(self.params, BITS[self.codec])


@dataclass
class Rounds:
    """What the peers of one team answered in each counted round, and when they were asked what they hold in the end.

    ``failure`` says why there is nothing more.
    """

    answers: list[list[Answer]] = field(default_factory=list)
    checks: list[Answer] = field(default_factory=list)
    wire: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def seconds(self) -> list[float]:
        """Each round's, from the first peer that begins to the last that is done."""
        return [_last(peers, "ended") - _first(peers, "began") for peers in self.answers]

    def median(self, key: str, of: Callable[[Sequence[float]], float] = statistics.fmean) -> float:
        """Over the rounds; ``of`` makes one number of the peers' numbers."""
        return statistics.median(of([float(peer[key]) for peer in peers]) for peers in self.answers)

    def span(self, began: str, ended: str) -> float | None:
        """Median seconds from the first peer's moment of one name to the last one's of another; None without such."""
        if began not in self.answers[0][0]:
            return None
        return statistics.median(_last(peers, ended) - _first(peers, began) for peers in self.answers)


async def play(names: Sequence[str], setup: Setup, say: Say) -> dict[str, Rounds]:
    """Have a team of each name make its rounds. One that fails says so in its result; the others go on."""
    results = {name: Rounds() for name in names}
    async with _teams(setup, results, say) as teams:
        for number in range(WARM_UP + setup.rounds):
            for name, team in list(teams.items()):
                try:
                    await _round(team, number, results[name], bool(setup.places), say)
                except WorkerFailed as error:
                    results[name].failure = str(error)
                    await teams.pop(name).end()
        for name, team in teams.items():
            try:
                results[name].checks = await team.ask(ROUND_WITHIN, do="check")
            except WorkerFailed as error:
                results[name].failure = str(error)
    return results


async def _round(team: Team, number: int, result: Rounds, apart: bool, say: Say) -> None:
    await team.ask(ROUND_WITHIN, do="prepare", number=number)
    before = await team.ask(ROUND_WITHIN, do="wire")
    answers = await team.ask(ROUND_WITHIN, do="round")
    after = await team.ask(ROUND_WITHIN, do="wire")
    sent = [now["wire"] - then["wire"] for now, then in zip(after, before, strict=True)]
    counted = number >= WARM_UP
    took = _last(answers, "ended") - _first(answers, "began")
    say(f"{team.name}: round {number}, {took:.3f} s{'' if counted else ' (not counted)'}")
    if counted:
        result.answers.append(answers)
        # On one network everybody sees the bytes of all.
        result.wire.append(statistics.fmean(sent) if apart else max(sent) / len(sent))


@contextlib.asynccontextmanager
async def _teams(setup: Setup, results: dict[str, Rounds], say: Say) -> AsyncIterator[dict[str, Team]]:
    async with contextlib.AsyncExitStack() as stack:
        folder = str(stack.enter_context(TemporaryFolder()))
        teams: dict[str, Team] = {}
        for name, result in results.items():
            say(f"{name}: {setup.peers} processes begin")
            teams[name] = team = Team(name)
            stack.push_async_callback(team.end)
            try:
                await team.start(_MODULE, _options(name, setup, folder))
            except WorkerFailed as error:
                result.failure = str(error)
                await teams.pop(name).end()
        yield teams


_MODULE = "prime_p2p.bench.contender"


def _options(name: str, setup: Setup, folder: str) -> list[dict[str, Any]]:
    """Of each process of a team."""
    assert name in CONTENDERS
    common = {
        "contender": name,
        "peers": setup.peers,
        "params": setup.params,
        "codec": setup.codec,
        "threads": setup.threads,
        "bandwidths": setup.bandwidths,
        "folder": folder,
    }
    places = setup.places or (("", "127.0.0.1"),) * setup.peers
    return [{**common, "rank": rank, "host": host, "address": address} for rank, (host, address) in enumerate(places)]


def _first(peers: Sequence[Answer], key: str) -> float:
    return float(min(peer[key] for peer in peers))


def _last(peers: Sequence[Answer], key: str) -> float:
    return float(max(peer[key] for peer in peers))
