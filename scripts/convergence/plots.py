"""Plots as SVG files: lines over an axis that may be logarithmic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from prime_p2p.monitor.charts import ticks

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 56, 210, 30, 44


@dataclass(frozen=True)
class Line:
    """Points (x, y), joined in the order they are given in."""

    label: str
    colour: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False
    dots: bool = True
    names: Sequence[str] = ()  # beside the dots


@dataclass(frozen=True)
class Axes:
    """What stands at the axes. With ``x_ticks`` the x axis is logarithmic, and those in its range are shown. Values
    above ``top`` are left out."""

    x_label: str
    y_label: str
    x_ticks: Mapping[float, str] = field(default_factory=dict)
    top: float = math.inf


def svg(axes: Axes, lines: Sequence[Line]) -> str:
    """The plot as a whole file. At least one line has two points of different x."""
    lines = [line for line in lines if line.points]
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points if y <= axes.top]
    space = (max(ys) - min(ys)) * 0.06 or 0.1
    low, high = min(ys) - space, max(ys) + space
    across = _across(axes, min(xs), max(xs))

    def up(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - BOTTOM - TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="8" y="16">{escape(axes.y_label)}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{HEIGHT - 8}" text-anchor="middle">{escape(axes.x_label)}</text>',
    ]
    for value in ticks(low, high, most=6):
        parts.append(f'<path d="M{LEFT} {up(value):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{up(value) + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    for x, label in (axes.x_ticks or {x: f"{x:g}" for x in ticks(min(xs), max(xs), most=8)}).items():
        if min(xs) <= x <= max(xs):
            at = HEIGHT - BOTTOM + 17
            parts.append(f'<text x="{across(x):.1f}" y="{at}" text-anchor="middle">{escape(label)}</text>')
    for number, line in enumerate(lines):
        parts += _draw(line, [(across(x), up(y)) for x, y in line.points if y <= axes.top])
        at = TOP + 14 + 18 * number
        parts.append(f'<text x="{WIDTH - RIGHT + 16}" y="{at}" fill="{line.colour}">{escape(line.label)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _across(axes: Axes, low: float, high: float) -> Callable[[float], float]:
    place = math.log if axes.x_ticks else float
    first, last = place(low), place(high)

    def across(x: float) -> float:
        return LEFT + 10 + (place(x) - first) / (last - first) * (WIDTH - LEFT - RIGHT - 20)

    return across


def _draw(line: Line, points: Sequence[tuple[float, float]]) -> Iterator[str]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
    yield f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="1.5"{dashes}/>'
    if line.dots:
        for x, y in points:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{line.colour}"/>'
    for (x, y), name in zip(points, line.names, strict=False):
        yield f'<text x="{x + 6:.1f}" y="{y - 5:.1f}" fill="{line.colour}">{escape(name)}</text>'
