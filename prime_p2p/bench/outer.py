"""A whole outer step of peers that train, phase by phase."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

from prime_p2p.bench.place import Place
from prime_p2p.bench.rounds import Say, Setup, play
from prime_p2p.bench.tables import shown, table
from prime_p2p.bench.team import WorkerFailed

PHASES = ("gather", "reduce", "commit", "apply")


@dataclass(frozen=True)
class OuterMeasured:
    """Medians: ``seconds`` from the first peer that begins to the last that is done, each peer's ``phases`` in seconds
    and ``cpu`` seconds on average, ``sent`` bytes, ``memory`` bytes above the vector that stands for the gradient."""

    setup: Setup
    seconds: float
    phases: dict[str, float]
    cpu: float
    sent: float
    memory: float
    equal: bool

    @property
    def per_million(self) -> float:
        """Milliseconds per million parameters."""
        return self.seconds / self.setup.params * 1e9


async def measure(setup: Setup, say: Say) -> OuterMeasured:
    """Raises WorkerFailed."""
    result = (await play(("outer",), setup, say))["outer"]
    if result.failure:
        raise WorkerFailed(result.failure)
    return OuterMeasured(
        setup,
        statistics.median(result.seconds),
        {phase: result.median(phase) for phase in PHASES},
        result.median("cpu"),
        result.median("sent"),
        result.median("memory", max),
        len({check["digest"] for check in result.checks}) == 1,
    )


def as_json(found: OuterMeasured) -> dict[str, Any]:
    return asdict(found) | {"ms_per_million": found.per_million}


def as_markdown(place: Place, found: OuterMeasured) -> str:
    setup = found.setup
    head = ["seconds", *PHASES, "ms per million", "CPU-s a peer", "MB sent a peer", "peak memory, MB", "same bytes"]
    row = [
        shown(found.seconds, ".3f"),
        *(shown(found.phases[phase], ".3f") for phase in PHASES),
        shown(found.per_million, ".1f"),
        shown(found.cpu, ".2f"),
        shown(found.sent, ".1f", 1e6),
        shown(found.memory, ".0f", 1e6),
        "yes" if found.equal else "no",
    ]
    what = f"{setup.peers} peers{place.words}, {setup.params / 1e6:g} M parameters, {setup.codec}"
    title = f"{what}, medians of {setup.rounds} outer steps"
    return "\n".join([title, "", *table(head, [row])])
