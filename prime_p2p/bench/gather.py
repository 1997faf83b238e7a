"""How long peers that are ready take to form a group."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

from prime_p2p.bench.rounds import Rounds, Say, Setup, play
from prime_p2p.bench.tables import shown, table
from prime_p2p.bench.team import WorkerFailed

SIZES = (2, 4, 8, 16)


@dataclass(frozen=True)
class Gathered:
    """Medians, in seconds: until the last peer knows the group (and the longest of the rounds), until the round over a
    vector of one block is committed at all; ``whole`` is whether every group had all peers."""

    peers: int
    formed: float
    longest: float
    committed: float
    whole: bool


async def measure(sizes: tuple[int, ...], rounds: int, say: Say) -> list[Gathered]:
    """One team after the other. Raises WorkerFailed."""
    found = []
    for peers in sizes:
        result = (await play(("gather",), Setup(peers, 1, rounds), say))["gather"]
        if result.failure:
            raise WorkerFailed(result.failure)
        found.append(_summed_up(peers, result))
    return found


def _summed_up(peers: int, result: Rounds) -> Gathered:
    formed = [max(peer["formed"] for peer in each) - max(peer["began"] for peer in each) for each in result.answers]
    whole = all(peer["members"] == peers for each in result.answers for peer in each)
    return Gathered(peers, statistics.median(formed), max(formed), statistics.median(result.seconds), whole)


def as_json(found: list[Gathered]) -> dict[str, Any]:
    return {"gather": [asdict(one) for one in found]}


def as_markdown(found: list[Gathered]) -> str:
    head = ["peers", "group formed, s", "longest", "round committed, s", "all in it"]
    rows = [
        [
            str(one.peers),
            shown(one.formed, ".3f"),
            shown(one.longest, ".3f"),
            shown(one.committed, ".3f"),
            "yes" if one.whole else "no",
        ]
        for one in found
    ]
    return "\n".join(table(head, rows))
