"""Parts of pages about a run: what the report of a swarm and the page of a run that goes on both show.

Texts are escaped here, unless they are said to be HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from prime_p2p.monitor.charts import Axes, Series, bar_chart, legend, line_chart
from prime_p2p.monitor.metrics import PHASES
from prime_p2p.monitor.style import COLOURS

Pairs = Iterable[Sequence[float | None]]
"""An outer step or a time each, and a value, which may be missing."""
_PHASES_NOTE = "Where the time of an outer step goes, the mean over its peers."


# ---- about the rounds of a run: ``rounds`` are entries as ``report.rounds_of`` makes them


def losses(train: Sequence[tuple[str, Pairs]], validation: Pairs, rounds: Sequence[Mapping[str, Any]]) -> str:
    """The loss curves: of training for each peer, whose names are given, and of validation."""
    curves = [(name, points(pairs)) for name, pairs in train]
    if len(curves) <= COLOURS:
        series = [Series(name, f"c{place}", values) for place, (name, values) in enumerate(curves)]
        shown = series
    else:
        mean = Series("mean of training", "c0", points([one["outer_step"], one["train_loss"]] for one in rounds))
        series = [*(Series(name, "quiet", values, hints=False) for name, values in curves), mean]
        shown = [Series("each peer", "quiet", curves[0][1]), mean]
    anchor = Series("validation", "ink", points(validation), marked=True)
    axes = Axes("Loss", "nats per token", from_zero=False)
    note = "Training loss of each peer, a mean over the inner steps; validation loss of the anchor."
    return card("Loss", note, legend([*shown, anchor]) + line_chart(axes, [*series, anchor]))


def group_sizes(rounds: Sequence[Mapping[str, Any]]) -> str:
    """How many peers made each outer step."""
    sizes = Series("peers", "c0", points([one["outer_step"], one["group_size"]] for one in rounds))
    axes = Axes("Peers per round", "peers", whole_y=True)
    return card("Peers per round", "How many peers each outer step was averaged over.", bar_chart(axes, [sizes]))


def phases(rounds: Sequence[Mapping[str, Any]], note: str = _PHASES_NOTE) -> str:
    """Where the time of each outer step went."""
    series = [
        Series(name, f"c{place}", points([one["outer_step"], one["seconds"][name]] for one in rounds))
        for place, name in enumerate(PHASES)
    ]
    rest = ([one["outer_step"], _rest(one["seconds"])] for one in rounds)
    series.append(Series("other", "quiet", points(rest)))
    chart = bar_chart(Axes("Time per phase", "seconds", unit=" s"), series)
    return card("Time per phase", note, legend(series) + chart)


def _rest(seconds: Mapping[str, float]) -> float:
    return max(0.0, seconds["total"] - sum(seconds[name] for name in PHASES))


# ---- of any page


def card(title: str, note: str, content: str) -> str:
    """A part with its title; ``content`` is HTML."""
    words = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{words}{content}</section>"


def tiles(figures: Sequence[tuple[str, str, str, str]]) -> str:
    """Figures side by side: the name of each, its value, a note, and a class of style (good, bad or none)."""
    cells = (
        f'<div class="tile {css}"><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>'
        for name, value, note, css in figures
    )
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: range) -> str:
    """A table that scrolls by itself on a narrow screen; the cells are HTML already."""

    def cell(tag: str, place: int, content: str) -> str:
        return f'<{tag} class="number">{content}</{tag}>' if place in numbers else f"<{tag}>{content}</{tag}>"

    head = "".join(cell("th", place, escape(text)) for place, text in enumerate(heads))
    body = "".join(f"<tr>{''.join(cell('td', place, text) for place, text in enumerate(row))}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Words and what there is to say of each, in a line as far as there is room."""
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs)
    return f'<dl class="facts">{items}</dl>'


def points(pairs: Pairs) -> tuple[tuple[float, float], ...]:
    """The pairs that have a value."""
    return tuple((float(x), float(y)) for x, y in pairs if x is not None and y is not None)


def code(text: str, length: int, from_end: bool = False) -> str:
    """The beginning or the end of an id or digest; hovering shows all of it."""
    short = text if len(text) <= length else ("…" + text[-length:] if from_end else text[:length] + "…")
    return f'<code title="{escape(text)}">{escape(short)}</code>' if text else "–"


def loss(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def megabytes(count: float) -> str:
    return f"{count / 1e6:,.1f} MB"
