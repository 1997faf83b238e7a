"""How the all-reduce grows with peers and parameters: python scripts/allreduce_growth.py [--peers 2 4 8] [--plot FILE]

A row for each size, with the medians of a few rounds of each contender in one run; those that this machine has too
little memory for are left out. The plot, an SVG, has the seconds of each over the parameters, both logarithmic.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import uvloop

from prime_p2p.bench import allreduce
from prime_p2p.bench.rounds import Setup
from prime_p2p.bench.tables import shown, table
from prime_p2p.errors import BadInput

CONTENDERS = ("ours", "raw_floor", "gloo_float32", "hivemind_float16")  # the first ones are kept where memory is short
COLOURS = {"ours": "#d62728", "raw_floor": "#7f7f7f", "gloo_float32": "#2ca02c", "hivemind_float16": "#1f77b4"}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 60, 170, 20, 45

Results = dict[tuple[int, int], dict[str, allreduce.Measured]]


def fitting(setup: Setup) -> tuple[str, ...]:
    """As many contenders as there is memory for."""
    for count in range(len(CONTENDERS), 0, -1):
        try:
            allreduce.check_memory(setup, CONTENDERS[:count])
        except BadInput:
            continue
        return CONTENDERS[:count]
    return ()


def rows(results: Results) -> Iterable[list[str]]:
    for (peers, params), found in results.items():
        ratios = allreduce.ratios(found)
        ours = found["ours"]
        yield [
            str(peers),
            f"{params / 1e6:g} M",
            *(shown(found[name].seconds if name in found else None, ".3f") for name in CONTENDERS),
            shown(ratios["raw_floor"], ".2f"),
            shown(ratios["hivemind_float16"], ".2f"),
            shown(ours.cpu, ".2f"),
            shown(ours.sent, ".1f", 1e6),
        ]


def plot(results: Results) -> str:
    """Lines over the parameters: one for each contender and number of peers, darker with more peers."""
    seconds = {key: found[name].seconds for key, found in results.items() for name in found}
    values = [value for found in results.values() for one in found.values() if (value := one.seconds)]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    sizes = sorted({params for _, params in seconds})
    first, last = math.log10(sizes[0]), math.log10(sizes[-1])

    def x(params: float) -> float:
        return LEFT + (math.log10(params) - first) / max(0.1, last - first) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(value) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">']
    parts.append(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>')
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" font-size="12" text-anchor="end">{10.0**power:g} s</text>')
    for params in sizes:
        label = f'<text x="{x(params):.1f}" y="{HEIGHT - BOTTOM + 18}" font-size="12" text-anchor="middle">'
        parts.append(f"{label}{params / 1e6:g} M</text>")
    parts += lines(results, x, y)
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 6}" font-size="12">parameters; peers at the end of each line</text>')
    for number, name in enumerate(CONTENDERS):
        at = TOP + 20 + 20 * number
        parts.append(f'<text x="{WIDTH - RIGHT + 40}" y="{at}" font-size="12" fill="{COLOURS[name]}">{name}</text>')
    return "\n".join([*parts, "</svg>\n"])


def lines(results: Results, x: object, y: object) -> Iterable[str]:
    assert callable(x)
    assert callable(y)
    for peers in sorted({peers for peers, _ in results}):
        for name in CONTENDERS:
            points = [
                (x(params), y(found[name].seconds))
                for (group, params), found in sorted(results.items())
                if group == peers and name in found and found[name].seconds
            ]
            if not points:
                continue
            path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
            wide = 1 + math.log2(peers) / 2
            yield f'<polyline points="{path}" fill="none" stroke="{COLOURS[name]}" stroke-width="{wide:g}"/>'
            yield f'<text x="{points[-1][0] + 4:.1f}" y="{points[-1][1] + 4:.1f}" font-size="11">{peers}</text>'


def measured(sizes: Iterable[tuple[int, int]], rounds: int) -> Results:
    results: Results = {}
    for peers, params in sizes:
        setup = Setup(peers, params, rounds)
        names = fitting(setup)
        if not names:
            print(f"{peers} peers, {params / 1e6:g} M: too little memory", file=sys.stderr)
            continue
        found: Mapping[str, allreduce.Measured] = uvloop.run(allreduce.measure(setup, names, lambda line: None))
        results[peers, params] = {name: one for name, one in found.items() if not one.failure}
        took = ", ".join(f"{name} {one.seconds:.3f} s" for name, one in found.items() if one.seconds is not None)
        print(f"{peers} peers, {params / 1e6:g} M: {took}", file=sys.stderr)
        for name, one in found.items():
            if one.failure:
                print(f"{peers} peers, {params / 1e6:g} M: no {name}: {one.failure}", file=sys.stderr)
    return {key: found for key, found in results.items() if "ours" in found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 10, 50, 200], help="of parameters")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plot", type=Path, help="write the plot to this file")
    options = parser.parse_args()
    sizes = [(peers, int(millions * 1e6)) for peers in options.peers for millions in options.millions]
    results = measured(sizes, options.rounds)
    head = ["peers", "parameters", *CONTENDERS, "ours / raw", "hivemind / ours", "CPU-s a peer", "MB sent a peer"]
    print("\n".join(table(head, list(rows(results)))))
    if options.plot and results:
        options.plot.write_text(plot(results))


if __name__ == "__main__":
    main()
