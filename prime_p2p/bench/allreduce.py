"""The all-reduce beside what one would use instead: all contenders in one run, round by round."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from prime_p2p.bench import usage
from prime_p2p.bench.place import Place
from prime_p2p.bench.rounds import Rounds, Say, Setup, play
from prime_p2p.bench.tables import shown, table
from prime_p2p.errors import BadInput

CONTENDERS = ("ours", "raw_floor", "hivemind_float16", "hivemind_8bit", "gloo_float32")
_PROCESS = 300_000_000  # bytes of memory of a process with its libraries and its libp2p daemon
_BYTES = {"ours": 11, "raw_floor": 4, "hivemind_float16": 20, "hivemind_8bit": 20, "gloo_float32": 14}  # a parameter
BROKEN_ERROR = 0.5  # relative; with more, what came out is not the mean


@dataclass
class Measured:
    """What one contender took, as medians of the rounds; or why it could not be measured.

    ``seconds`` from the first peer that begins to the last that is done (``reduce``: without the quantising before and
    the dequantising after it, where the contender has these); ``cpu`` seconds, ``sent`` bytes as the
    contender counts them, ``wire`` bytes with all headers, of a peer on average; ``memory`` bytes above its vector, of
    the peer with the most; ``error`` relative to the exact mean; ``equal`` whether all peers hold the same bytes.
    """

    seconds: float | None = None
    reduce: float | None = None
    each: list[float] = field(default_factory=list)
    cpu: float | None = None
    sent: float | None = None
    wire: float | None = None
    memory: float | None = None
    error: float | None = None
    equal: bool | None = None
    failure: str = ""


async def measure(setup: Setup, contenders: tuple[str, ...], say: Say) -> dict[str, Measured]:
    """Measure these contenders."""
    return {name: _summed_up(rounds) for name, rounds in (await play(contenders, setup, say)).items()}


def _summed_up(rounds: Rounds) -> Measured:
    if rounds.failure:
        return Measured(failure=rounds.failure)
    error = rounds.checks[0]["error_of_mean"]
    return Measured(
        seconds=statistics.median(rounds.seconds),
        reduce=rounds.span("reduce_began", "reduce_ended"),
        each=rounds.seconds,
        cpu=rounds.median("cpu"),
        sent=rounds.median("sent") if "sent" in rounds.answers[0][0] else None,
        wire=statistics.median(rounds.wire),
        memory=rounds.median("memory", max),
        error=error if error is not None and math.isfinite(error) else None,
        equal=None if error is None else len({check["digest"] for check in rounds.checks}) == 1,
        failure="what came out is not the mean" if error is not None and not error <= BROKEN_ERROR else "",
    )


def check_memory(setup: Setup, contenders: tuple[str, ...]) -> None:
    """Raise BadInput where this machine has too little memory for all of them at a time."""
    wanted = sum(setup.peers * (_PROCESS + _BYTES[name] * setup.params) for name in contenders)
    free = usage.available_memory()
    if wanted > free:
        raise BadInput(
            f"that takes about {wanted / 1e9:.0f} GB of memory and {free / 1e9:.0f} GB are free: "
            "give fewer --peers or --params, or only some contenders with --only"
        )


def ratios(results: dict[str, Measured]) -> dict[str, float | None]:
    """How many times as long as ours the others take, and ours as the raw floor; None where one was not measured."""

    def over(one: str, other: str) -> float | None:
        first, second = results.get(one, Measured()), results.get(other, Measured())
        if first.failure or second.failure or first.seconds is None or not second.seconds:
            return None
        return first.seconds / second.seconds

    others = {name: over(name, "ours") for name in ("hivemind_float16", "hivemind_8bit", "gloo_float32")}
    return {**others, "raw_floor": over("ours", "raw_floor")}


def share_of_link(place: Place, results: dict[str, Measured]) -> float | None:
    """What the bytes take on the slowest link at its full rate, over what our reduce took; None without a limit."""
    seconds = results["ours"].reduce if "ours" in results else None
    return place.best_seconds / seconds if seconds and place.best_seconds else None


def as_json(place: Place, results: dict[str, Measured]) -> dict[str, Any]:
    """One object with a key for each contender, ``place``, ``share_of_link`` and ``ratios``."""
    found = {name: asdict(measured) for name, measured in results.items()}
    return {
        "place": asdict(place),
        **found,
        "share_of_link": share_of_link(place, results),
        "ratios": ratios(results),
    }


def as_markdown(place: Place, results: dict[str, Measured]) -> str:
    """A table, and the ratios below it."""
    setup = place.setup
    head = ["", "seconds", "CPU-s a peer", "MB sent a peer", "MB on the wire", "peak memory, MB", "error", "same bytes"]
    rows = []
    for name, found in results.items():
        cells = [
            shown(found.seconds, ".3f"),
            shown(found.cpu, ".2f"),
            shown(found.sent, ".1f", 1e6),
            shown(found.wire, ".1f", 1e6),
            shown(found.memory, ".0f", 1e6),
            shown(found.error, ".4f"),
            {None: "", True: "yes", False: "no"}[found.equal],
        ]
        rows.append([name, *(cells if not found.failure else [found.failure])])
    what = f"{setup.peers} peers{place.words}, {setup.params / 1e6:g} M parameters, {setup.codec}"
    lines = [f"{what}, medians of {setup.rounds} rounds", "", *table(head, rows), ""]
    share = share_of_link(place, results)
    if share is not None:
        lines.append(f"- ours uses {share:.2f} of the slowest link's rate over the whole reduce")
    for name, ratio in ratios(results).items():
        if ratio is not None:
            lines.append(
                f"- ours takes {ratio:.2f} times as long as the raw floor"
                if name == "raw_floor"
                else f"- {name} takes {ratio:.2f} times as long as ours"
            )
    return "\n".join(lines)
