"""The plots of the page."""

from __future__ import annotations

import math
from collections.abc import Iterable

from scripts.convergence.arms import Arm
from scripts.convergence.findings import Measured, measured
from scripts.convergence.plan import ALONE, DATA_PARALLEL, FP32, INT4, INT8, PERIODS, TUNED_ON, Found, rates
from scripts.convergence.plots import Axes, Line, svg

COLOURS = {ALONE: "#7f7f7f", DATA_PARALLEL: "#1f77b4", FP32: "#2ca02c", INT8: "#d62728", INT4: "#9467bd"}
LOSS = "validation loss, nats a byte"
_NEAR = 0.25  # a rate whose loss is so far above the best of all is outside of the plot


def figures(found: Found) -> dict[str, str]:
    """An SVG for each plot that there is something for, by the name of its file."""
    drawn = {"curves": _curves(found), "bytes": _bytes(found), "rates": _rates(found)}
    return {name: svg(axes, lines) for name, (axes, lines) in drawn.items() if _spans(lines)}


def _spans(lines: Iterable[Line]) -> bool:
    """Whether there is more than one x to draw between."""
    return len({x for line in lines for x, _ in line.points}) > 1


def _curves(found: Found) -> tuple[Axes, list[Line]]:
    lines = []
    for arm, one in _known(COLOURS, found):
        curves = [outcome.curve for setting, outcome in found.items() if (setting.arm, setting.rate) == (arm, one.rate)]
        points = [
            (step, sum(curve[place][1] for curve in curves) / len(curves)) for place, (step, _) in enumerate(curves[0])
        ]
        lines.append(Line(arm.title, COLOURS[arm], points))
    return Axes("inner steps of a peer", LOSS), lines


def _bytes(found: Found) -> tuple[Axes, list[Line]]:
    """What DiLoCo's peers send by H, and by codec, with data-parallel at the right end."""
    by_period = _known(sorted((INT8, *PERIODS), key=lambda arm: -arm.inner_steps), found)
    names = [f"H = {arm.inner_steps}" for arm, _ in by_period]
    lines = [
        Line("DiLoCo int8", COLOURS[INT8], [(one.sent, one.loss) for _, one in by_period], names=names),
        *(Line(arm.title, COLOURS[arm], [(one.sent, one.loss)]) for arm, one in _known((FP32, INT4), found)),
    ]
    for arm, one in _known((DATA_PARALLEL,), found):
        left = min([x for line in lines for x, _ in line.points], default=one.sent)
        lines.append(Line(arm.title, COLOURS[arm], [(one.sent, one.loss)]))
        lines.append(
            Line("1 % above it", COLOURS[arm], [(left, one.loss * 1.01), (one.sent, one.loss * 1.01)], True, False)
        )
    ticks = {10.0**power * factor: f"{10 ** (power - 6) * factor:g} MB" for power in range(5, 11) for factor in (1, 3)}
    return Axes("uploaded by each peer in the whole run", LOSS, ticks), lines


def _rates(found: Found) -> tuple[Axes, list[Line]]:
    lines = [Line(arm.title, colour, sorted(rates(arm, found).items())) for arm, colour in COLOURS.items()]
    ticks = {rate: f"{rate:g}" for line in lines for rate, _ in line.points}
    best = min((loss for line in lines for _, loss in line.points), default=math.inf)
    return Axes(f"inner learning rate at its peak, seed {TUNED_ON}", LOSS, ticks, best + _NEAR), lines


def _known(arms: Iterable[Arm], found: Found) -> list[tuple[Arm, Measured]]:
    """Those of the arms that are tuned, and did not diverge."""
    return [(arm, one) for arm in arms if (one := measured(arm, found)) is not None and math.isfinite(one.loss)]
