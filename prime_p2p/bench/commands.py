"""``prime-p2p bench``: its commands. Each imports what it needs when it runs, so that ``--help`` stays fast."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar

import typer

from prime_p2p.errors import BadInput

app = typer.Typer(help="Measure how fast this machine and link are, beside what one would use instead.")

Found = TypeVar("Found")

PeersOption = Annotated[int, typer.Option(min=1, max=64, metavar="G", help="Processes that take part.")]
ParamsOption = Annotated[str, typer.Option(metavar="P", help="Elements of the vector, as in 50M, 1.5M or 200000.")]
RoundsOption = Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Rounds to take the median of.")]
CodecOption = Annotated[str, typer.Option(metavar="NAME", help="int8, or int4 for half the bytes.")]
RateOption = Annotated[
    list[float] | None,
    typer.Option(min=0, metavar="MBIT", help="Give each peer a link so fast, each way; repeat for unequal ones."),
]
TripOption = Annotated[
    float, typer.Option(min=0, metavar="MS", help="Give all links a delay: a round trip of so long.")
]
CongestionOption = Annotated[str, typer.Option(metavar="NAME", help="TCP's congestion control on such links.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of Markdown.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Say nothing of the progress on standard error.")]


@app.command()
def allreduce(
    peers: PeersOption = 4,
    params: ParamsOption = "50M",
    rounds: RoundsOption = 5,
    codec: CodecOption = "int8",
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Measure only this one; repeatable.")] = None,
    rate: RateOption = None,
    round_trip: TripOption = 0.0,
    congestion: CongestionOption = "cubic",
    equal_parts: Annotated[
        bool, typer.Option("--equal-parts", help="Give all peers an equal part, whatever their links.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Average a vector: ours beside a raw floor, hivemind's averager and torch.distributed with gloo."""
    from prime_p2p.bench import allreduce as bench
    from prime_p2p.bench.place import Links, placed
    from prime_p2p.bench.rounds import Setup

    names = tuple(only or bench.CONTENDERS)
    unknown = [name for name in names if name not in bench.CONTENDERS]
    if unknown:
        raise BadInput(f"--only {unknown[0]}: there are {', '.join(bench.CONTENDERS)}")
    setup = Setup(_at_least(2, peers), _count(params), rounds, _known_codec(codec))
    bench.check_memory(setup, names)
    with placed(setup, Links(tuple(rate or ()), round_trip, equal_parts, congestion)) as place:
        results = _run(bench.measure(place.setup, names, _say(quiet)))
    print(json.dumps(bench.as_json(place, results), indent=2) if as_json else bench.as_markdown(place, results))
    return 1 if all(found.failure for found in results.values()) else 0


@app.command()
def outer(
    peers: PeersOption = 4,
    params: ParamsOption = "50M",
    rounds: RoundsOption = 5,
    codec: CodecOption = "int8",
    threads: Annotated[int, typer.Option(min=1, metavar="N", help="CPU threads of each peer.")] = 1,
    rate: RateOption = None,
    round_trip: TripOption = 0.0,
    congestion: CongestionOption = "cubic",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Make whole outer steps: pseudo-gradient, round, outer optimizer, parameters, journal, digest."""
    from prime_p2p.bench import outer as bench
    from prime_p2p.bench.place import Links, placed
    from prime_p2p.bench.rounds import Setup

    setup = Setup(peers, _count(params), rounds, _known_codec(codec), threads)
    with placed(setup, Links(tuple(rate or ()), round_trip, congestion=congestion)) as place:
        found = _run(bench.measure(place.setup, _say(quiet)))
        print(json.dumps(bench.as_json(found), indent=2) if as_json else bench.as_markdown(place, found))
    return 0


@app.command()
def gather(
    peers: Annotated[
        list[int] | None,
        typer.Option(min=2, max=64, metavar="G", help="Processes that take part; repeatable.", show_default="2 4 8 16"),
    ] = None,
    rounds: RoundsOption = 11,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Form groups of peers that are all ready."""
    from prime_p2p.bench import gather as bench

    found = _run(bench.measure(tuple(peers or bench.SIZES), rounds, _say(quiet)))
    print(json.dumps(bench.as_json(found), indent=2) if as_json else bench.as_markdown(found))
    return 0


@app.command()
def codec(
    params: ParamsOption = "10M",
    rounds: RoundsOption = 9,
    as_json: JsonOption = False,
) -> int:
    """Run the kernels of an outer step on one core."""
    from prime_p2p.bench import codec as bench

    found = bench.measure(_count(params), rounds)
    print(json.dumps(bench.as_json(found), indent=2) if as_json else bench.as_markdown(found))
    return 0


@app.command()
def state(
    params: ParamsOption = "50M",
    donors: Annotated[
        list[int] | None,
        typer.Option(min=1, max=16, metavar="N", help="Peers that give; repeatable.", show_default="1 2 4"),
    ] = None,
    rounds: RoundsOption = 5,
    without_hivemind: Annotated[bool, typer.Option("--no-hivemind", help="Do not measure hivemind's.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Fetch the state of a run as a joining peer does, beside raw streams and hivemind."""
    from prime_p2p.bench import state as bench

    question = bench.Question(_count(params), tuple(donors or (1, 2, 4)), rounds, not without_hivemind)
    found = _run(bench.measure(question, _say(quiet)))
    print(json.dumps(bench.as_json(found), indent=2) if as_json else bench.as_markdown(found))
    return 0


def _run(measuring: Coroutine[Any, Any, Found]) -> Found:
    import uvloop

    return uvloop.run(measuring)


def _say(quiet: bool) -> Callable[[str], None]:
    def say(line: str) -> None:
        if not quiet:
            print(line, file=sys.stderr, flush=True)

    return say


def _count(text: str) -> int:
    match = re.fullmatch(r"(\d[\d_]*(?:\.\d+)?)([kKmMbB]?)", text.strip())
    count = float(match[1]) * {"": 1, "k": 1e3, "m": 1e6, "b": 1e9}[match[2].lower()] if match else 0.0
    if not 1 <= count <= 1e11 or not count.is_integer():
        raise BadInput(f"--params {' '.join(text.split())}: must be a number of elements, as in 50M, 1.5M or 200000")
    return int(count)


def _at_least(least: int, peers: int) -> int:
    if peers < least:
        raise BadInput(f"--peers {peers}: an all-reduce takes at least {least}")
    return peers


def _known_codec(name: str) -> str:
    from prime_p2p.allreduce.codec import bits_of

    bits_of(name)
    return name
