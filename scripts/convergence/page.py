"""docs/convergence.md and its plots, from whatever results there are."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from string import Template

from prime_p2p.estimate import Estimate
from scripts.convergence import arms
from scripts.convergence.arms import SEQUENCES, STEPS, Arm, Setting
from scripts.convergence.figures import figures
from scripts.convergence.findings import Measured, above, gaps, measured, verdicts
from scripts.convergence.plan import (
    ALONE,
    ALONE_LONGER,
    ANCHOR,
    AVERAGING,
    DATA_PARALLEL,
    ELASTIC,
    FP32,
    INT4,
    INT8,
    LARGE,
    LARGE_BATCHES,
    LOSSY,
    LOSSY_OTHERWISE,
    MUON,
    OFTEN,
    OUTER,
    PERIODS,
    PLAN,
    Found,
    best_rate,
    rates,
)

NOTHING = "not measured"
SHOWS = {
    "curves": "Validation loss over inner steps",
    "bytes": "Validation loss over what a peer sends",
    "rates": "Validation loss over the inner learning rate",
}


def write(found: Found, docs: Path) -> None:
    """Write the page into ``docs``, and its plots beside the results."""
    drawn = figures(found)
    (docs / "convergence.md").write_text(page(found, drawn.keys()))
    for name, plot in drawn.items():
        (docs / "convergence" / f"{name}.svg").write_text(plot)


def page(found: Found, drawn: Collection[str]) -> str:
    """The page as Markdown, with the plots of these names."""
    seconds = sum(outcome.seconds for outcome in found.values())
    one_peer = [outcome.seconds for setting, outcome in found.items() if setting.arm == ALONE]
    fields = {
        "verdicts": _verdicts(found),
        "outer_rate": f"{arms.USUAL_RATE:g}",
        "momentum": f"{arms.USUAL_MOMENTUM:g}",
        "parameters": f"{Estimate(Setting(INT8, 1.0, 1).recipe(), 1).parameters:,}",
        "pace": f"{min(one_peer) / STEPS * 1000:.0f}" if one_peer else "?",
        "steps": str(STEPS),
        "sequences": str(SEQUENCES),
        "ways": _losses((ALONE, ALONE_LONGER, DATA_PARALLEL, FP32, INT8, INT4), found),
        "periods": _losses(sorted((INT8, *PERIODS), key=lambda arm: arm.inner_steps), found),
        "outer": _outer(found),
        "often": str(OFTEN.inner_steps),
        "members": _losses((INT8, ELASTIC, LOSSY, *LOSSY_OTHERWISE), found, beside=INT8),
        "large": _losses(LARGE_BATCHES, found, beside=LARGE_BATCHES[0]),
        "batch": str(LARGE),
        "muon": _losses((DATA_PARALLEL, INT8, *MUON), found),
        "anchor": f"{found[ANCHOR].loss:.2f}." if ANCHOR in found else f"{NOTHING}.",
        "tried": _rates(found),
        "gaps": "\n".join(f"- {line}" for line in gaps(found)) or "Nothing: the plan is done.",
        "hours": f"{seconds / 3600:.1f}",
    }
    for name, shows in SHOWS.items():
        fields[name] = f"![{shows}](convergence/{name}.svg)\n" if name in drawn else ""
    return Template(Path(__file__).with_name("page.md").read_text()).substitute(fields)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def _verdicts(found: Found) -> str:
    answers = {True: "yes", False: "**no**", None: NOTHING}
    rows = [(verdict.wanted, answers[verdict.reached], verdict.because) for verdict in verdicts(found)]
    return _table(("wanted", "reached", "measured"), rows)


def _losses(wanted: Iterable[Arm], found: Found, beside: Arm = DATA_PARALLEL) -> str:
    """A row for each arm, compared with one of them."""
    other = measured(beside, found)
    rows = []
    for arm in wanted:
        one = measured(arm, found)
        if one is None:
            rows.append((arm.title, "", _untuned(arm, found), "", "", ""))
            continue
        gap = f"{above(one, other):+.1%}" if other and arm != beside else ""
        parallel = measured(replace(DATA_PARALLEL, batch=arm.batch), found)
        less = f"{parallel.sent / one.sent:.0f}" if parallel and one.sent else ""
        sent = f"{one.sent / 1e6:.1f} MB" if one.sent else ""
        rows.append((arm.title, f"{one.rate:g}", _shown(one), gap, sent, less))
    head = ("", "rate", "loss", f"against {beside.title}", "sent", "times less than data-parallel")
    return _table(head, rows)


def _shown(one: Measured) -> str:
    if not math.isfinite(one.loss):
        return "diverged"
    if one.spread is not None:
        return f"{one.loss:.4f} ± {one.spread:.4f} ({len(one.losses)} seeds)"
    return f"{one.loss:.4f} ({len(one.losses)} seed{'s' * (len(one.losses) > 1)})"


def _untuned(arm: Arm, found: Found) -> str:
    tried = [loss for loss in rates(arm, found).values() if math.isfinite(loss)]
    return f"{min(tried):.4f} (not tuned yet)" if tried else NOTHING


def _outer(found: Found) -> str:
    cells = {(arm.outer_rate, arm.momentum): arm for arm in (AVERAGING, OFTEN, *OUTER)}
    outer_rates, momenta = (sorted(set(values)) for values in zip(*cells, strict=True))
    rows = []
    for rate in outer_rates:
        row = [_cell(cells[rate, momentum], found) if (rate, momentum) in cells else "" for momentum in momenta]
        rows.append([f"outer rate {rate:g}", *row])
    return _table(["", *(f"momentum {momentum:g}" for momentum in momenta)], rows)


def _cell(arm: Arm, found: Found) -> str:
    one = measured(arm, found)
    return _untuned(arm, found) if one is None else _shown(one)


def _rates(found: Found) -> str:
    arms_tried = [arm for arm in dict.fromkeys(stage.arm for stage in PLAN) if rates(arm, found)]
    columns = sorted({rate for arm in arms_tried for rate in rates(arm, found)})
    rows = []
    for arm in arms_tried:
        losses, best = rates(arm, found), best_rate(arm, found)
        cells = [
            ("diverged" if math.isinf(losses[rate]) else f"{losses[rate]:.4f}") if rate in losses else ""
            for rate in columns
        ]
        rows.append(
            [arm.title, *(f"**{cell}**" if rate == best else cell for rate, cell in zip(columns, cells, strict=True))]
        )
    return _table(["", *(f"{rate:g}" for rate in columns)], rows)
