"""Charts as inline SVG: text in, text out, coloured by the CSS classes of the page they stand in.

A chart is drawn for one size. A page holds it twice, wide and narrow, and shows the one that fits the screen, so that
the text stays readable on both without a script.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from html import escape

MAX_POINTS = 200  # of one line; more are averaged, a screen could not tell them apart
MAX_BARS = 80
MAX_MARKS = 40


@dataclass(frozen=True)
class Size:
    """A chart's size in CSS pixels, and the style class that shows it."""

    name: str
    width: int
    height: int


WIDE, NARROW = Size("wide", 760, 280), Size("narrow", 360, 250)


@dataclass(frozen=True)
class Series:
    """Values of one kind; ``css`` names its colour. Points are (x, value), and x is an outer step or a time."""

    label: str
    css: str
    points: tuple[tuple[float, float], ...]
    marked: bool = False  # a dot at each point, unless they would run together
    hints: bool = True  # hovering over a line shows its values


@dataclass(frozen=True)
class Across:
    """What values stand over: ``label`` names it, ``ticks`` finds round values of it in a range, at most so many and
    one, ``tick`` writes one of them, and ``hint`` writes any value of it."""

    label: str
    ticks: Callable[[float, float, int], list[float]]
    tick: Callable[[float], str]
    hint: Callable[[float], str]


@dataclass(frozen=True)
class Axes:
    """What a chart says at its axes. ``unit`` follows the values that hovering shows."""

    title: str
    y_label: str
    unit: str = ""
    from_zero: bool = True
    whole_y: bool = False
    across: Across | None = None
    """Outer steps where it is None."""

    @property
    def x(self) -> Across:
        return self.across or OUTER_STEPS


def line_chart(axes: Axes, series: Sequence[Series]) -> str:
    """Lines, for both sizes; a sentence where there is nothing to draw."""
    series = [thinned(one, MAX_POINTS) for one in series if one.points]
    if not series:
        return _nothing(axes)
    return "".join(_draw_lines(axes, series, size) for size in (WIDE, NARROW))


def bar_chart(axes: Axes, series: Sequence[Series]) -> str:
    """Bars, the series stacked on each other; all series have the same outer steps."""
    series = [one for one in series if one.points]
    if not series:
        return _nothing(axes)
    return "".join(_draw_bars(axes, [thinned(one, MAX_BARS) for one in series], size) for size in (WIDE, NARROW))


def legend(series: Sequence[Series]) -> str:
    """An HTML list of what the colours mean."""
    items = (f'<li><i class="swatch {one.css}"></i>{escape(one.label)}</li>' for one in series if one.points)
    return f'<ul class="legend">{"".join(items)}</ul>'


def ticks(low: float, high: float, most: int, whole: bool = False) -> list[float]:
    """At most ``most`` + 1 round numbers (1, 2 or 5 times a power of ten apart) within [low, high]."""
    span = high - low
    if span <= 0:
        return [low]
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    step = max(1.0, step) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def time_ticks(low: float, high: float, most: int) -> list[float]:
    """At most ``most`` + 1 times in [low, high], in unix seconds, that a clock (UTC) shows as round ones."""
    step = next((step for step in _CLOCK_STEPS if step * most >= high - low), None)
    if step is None:
        days = math.ceil((high - low) / most / 86400)
        step = 86400 * days
    return [float(number * step) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


_CLOCK_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)  # seconds


def clock_time(seconds: float) -> str:
    """A time of day, UTC, to the second."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%H:%M:%S}"


def _short_time(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    whole_day = moment.hour == moment.minute == moment.second == 0
    return f"{moment:%d %b}" if whole_day else f"{moment:%H:%M:%S}" if moment.second else f"{moment:%H:%M}"


def thinned(series: Series, most: int) -> Series:
    """The series with at most ``most`` points: means of neighbours, in groups whose sizes differ by at most one."""
    count = len(series.points)
    if count <= most:
        return series
    groups = [series.points[count * place // most : count * (place + 1) // most] for place in range(most)]
    points = tuple((sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups)
    return replace(series, points=points)


@dataclass(frozen=True)
class _Frame:
    """Maps values to the pixels of one size, and draws what stands around them."""

    axes: Axes
    size: Size
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    LEFT, RIGHT, TOP, BOTTOM = 52, 14, 26, 42

    def x(self, value: float) -> float:
        low, high = self.x_range
        return round(self.LEFT + (value - low) / (high - low) * (self.size.width - self.LEFT - self.RIGHT), 1)

    def y(self, value: float) -> float:
        low, high = self.y_range
        floor = self.size.height - self.BOTTOM
        return round(floor - (value - low) / (high - low) * (floor - self.TOP), 1)

    def svg(self, content: str, x_ticks: Sequence[float]) -> str:
        size, axes = self.size, self.axes
        right, floor = size.width - self.RIGHT, size.height - self.BOTTOM
        parts = [
            f'<svg class="chart {size.name}" viewBox="0 0 {size.width} {size.height}" role="img"'
            f' aria-label="{escape(axes.title)}"><text class="axis" x="4" y="13">{escape(axes.y_label)}</text>'
        ]
        for value in ticks(*self.y_range, most=5, whole=axes.whole_y):
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{self.LEFT}" x2="{right}" y1="{y}" y2="{y}"/>')
            parts.append(f'<text class="tick end" x="{self.LEFT - 7}" y="{y + 4}">{_short(value)}</text>')
        for value in x_ticks:
            parts.append(f'<text class="tick mid" x="{self.x(value)}" y="{floor + 17}">{axes.x.tick(value)}</text>')
        parts.append(f'<line class="base" x1="{self.LEFT}" x2="{right}" y1="{floor}" y2="{floor}"/>')
        label = escape(axes.x.label)
        parts.append(f'<text class="axis mid" x="{(self.LEFT + right) / 2}" y="{size.height - 6}">{label}</text>')
        return "".join([*parts, content, "</svg>"])


def _draw_lines(axes: Axes, series: Sequence[Series], size: Size) -> str:
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points]
    frame = _Frame(axes, size, _room(min(xs), max(xs)), _padded(min(ys), max(ys), axes.from_zero))
    content = []
    for one in series:
        path = " ".join(f"{frame.x(x)},{frame.y(y)}" for x, y in one.points)
        content.append(f'<polyline class="line {one.css}" points="{path}"/>')
    for one in (one for one in series if one.hints):
        marked = (one.marked and len(one.points) <= MAX_MARKS) or len(one.points) == 1
        radius, style = (3.5, "dot") if marked else (5, "hover")
        for x, y in one.points:
            hint = escape(f"{one.label}, {axes.x.hint(x)}: {_number(y)}{axes.unit}")
            content.append(
                f'<circle class="{style} {one.css}" cx="{frame.x(x)}" cy="{frame.y(y)}" r="{radius}">'
                f"<title>{hint}</title></circle>"
            )
    most = 10 if size is WIDE else 5
    return frame.svg("".join(content), axes.x.ticks(*frame.x_range, most))


def _draw_bars(axes: Axes, series: Sequence[Series], size: Size) -> str:
    xs = [x for x, _ in series[0].points]
    step = (xs[-1] - xs[0]) / (len(xs) - 1) if len(xs) > 1 else 1.0
    heights = [sum(one.points[place][1] for one in series) for place in range(len(xs))]
    frame = _Frame(axes, size, _room(xs[0] - step / 2, xs[-1] + step / 2), _padded(0.0, max(heights), True))
    width = round(min(48.0, max(1.0, (frame.x(xs[0] + step) - frame.x(xs[0])) * 0.78)), 1)
    content = []
    for place, x in enumerate(xs):
        below = 0.0
        for one in series:
            value = one.points[place][1]
            top = frame.y(below + value)
            height = round(frame.y(below) - top, 1)
            below += value
            if height > 0:
                hint = escape(f"{one.label}, {axes.x.hint(x)}: {_number(value)}{axes.unit}")
                content.append(
                    f'<rect class="bar {one.css}" x="{round(frame.x(x) - width / 2, 1)}" y="{top}" width="{width}"'
                    f' height="{height}"><title>{hint}</title></rect>'
                )
    most = 10 if size is WIDE else 5
    return frame.svg("".join(content), [x for x in axes.x.ticks(xs[0], xs[-1], most) if x >= xs[0]])


def _room(low: float, high: float) -> tuple[float, float]:
    space = max(0.5, abs(low) * 1e-9)  # beside a large value 0.5 would be lost in rounding
    return (low, high) if high > low else (low - space, high + space)


def _padded(low: float, high: float, from_zero: bool) -> tuple[float, float]:
    if from_zero:
        return (0.0, high * 1.06) if high > 0 else (0.0, 1.0)
    space = (high - low) * 0.06 or abs(high) * 0.05 or 0.5
    return low - space, high + space


def _number(value: float) -> str:
    """A figure as short as it may be: thousands apart, at most four digits behind the point."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def _short(value: float) -> str:
    """A figure that fits beside a chart."""
    power = min(4, int(math.log10(abs(value))) // 3) if abs(value) >= 100_000 else 0
    return _number(value / 1000**power) + ("", "k", "M", "G", "T")[power]


def _nothing(axes: Axes) -> str:
    return f'<p class="nothing">{escape(axes.title)}: nothing was measured.</p>'


OUTER_STEPS = Across(
    "outer step",
    lambda low, high, most: ticks(low, high, most, whole=True),
    _number,
    lambda value: f"outer step {_number(round(value, 1))}",
)
TIME = Across("time (UTC)", time_ticks, _short_time, lambda value: f"at {clock_time(value)}")
"""Unix seconds."""
