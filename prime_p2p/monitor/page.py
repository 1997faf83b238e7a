"""``report.html``: the report on one self-contained page, without scripts and without anything to load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from prime_p2p.monitor.charts import NARROW, Axes, Series, bar_chart, legend, line_chart
from prime_p2p.monitor.metrics import PHASES
from prime_p2p.monitor.report import HTML_NAME
from prime_p2p.monitor.text import duration

_COLOURS = 8  # that a page tells apart; a larger swarm shows one mean and its peers in one quiet colour
_SHOWN_ROUNDS = 200  # in the table of rounds; the JSON has them all


def write_html(report: Mapping[str, Any], directory: Path) -> Path:
    """Write ``report.html`` into an existing folder; returns its path."""
    path = directory / HTML_NAME
    path.write_text(page(report), encoding="utf-8")
    return path


def page(report: Mapping[str, Any]) -> str:
    """The whole HTML document. Every text of the report is escaped."""
    title = f"{report['name']}: {_peers_of(report)}, {report['outer_steps']} outer steps"
    sections = [
        _header(report),
        _notices(report),
        _tiles(report),
        _losses(report),
        _group_sizes(report),
        _phases(report),
        _peers(report),
        _rounds(report),
        _origin(report),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        + "\n".join(sections)
        + "</main></body></html>\n"
    )


def _header(report: Mapping[str, Any]) -> str:
    started = escape(report["started_at"].replace("T", " ").replace("+00:00", " UTC"))
    return (
        f"<header><h1>{escape(report['name'])}</h1>"
        f"<p>{_peers_of(report)} · {report['outer_steps']} of {report['outer_steps_asked']} outer steps ·"
        f" {duration(report['wall_seconds'])} · {started}</p></header>"
    )


def _peers_of(report: Mapping[str, Any]) -> str:
    return "1 peer" if report["peers"] == 1 else f"{report['peers']} peers"


def _notices(report: Mapping[str, Any]) -> str:
    lines = ([report["failure"]] if report["failure"] else []) + list(report["events"])
    if not lines:
        return ""
    return f'<ul class="notices">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'


def _tiles(report: Mapping[str, Any]) -> str:
    loss = report["val_loss"]
    agree = {True: ("all agree", "good"), False: ("they differ", "bad"), None: ("no peer finished", "bad")}
    digest_text, digest_class = agree[report["digests_agree"]]
    all_finished = report["peers_finished"] == report["peers"]
    tiles = [
        ("Validation loss", _loss(loss["end"]), f"from {_loss(loss['start'])} at the start", ""),
        ("Peers finished", f"{report['peers_finished']} of {report['peers']}", "", "" if all_finished else "bad"),
        ("Digests", digest_text, "at every outer step", digest_class),
        ("Compute share", f"{report['compute_share']:.1%}", "of the time in inner steps", ""),
        ("Sent per peer", _megabytes(report["bytes_sent_per_peer"]), "over the whole run", ""),
    ]
    cells = (
        f'<div class="tile {css}"><dt>{name}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>'
        for name, value, note, css in tiles
    )
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def _losses(report: Mapping[str, Any]) -> str:
    curves = report["curves"]
    train = {name: _points(points) for name, points in curves["train"].items()}
    if len(train) <= _COLOURS:
        series = [Series(name, f"c{place}", points) for place, (name, points) in enumerate(train.items())]
        shown = series
    else:
        mean = Series("mean of training", "c0", _points([r["outer_step"], r["train_loss"]] for r in report["rounds"]))
        series = [*(Series(name, "quiet", points, hints=False) for name, points in train.items()), mean]
        shown = [Series("each peer", "quiet", next(iter(train.values()))), mean]
    validation = Series("validation", "ink", _points(curves["validation"]), marked=True)
    axes = Axes("Loss", "nats per token", from_zero=False)
    note = "Training loss of each peer, a mean over the inner steps; validation loss of the anchor."
    return _card("Loss", note, legend([*shown, validation]) + line_chart(axes, [*series, validation]))


def _group_sizes(report: Mapping[str, Any]) -> str:
    sizes = Series("peers", "c0", _points([r["outer_step"], r["group_size"]] for r in report["rounds"]))
    axes = Axes("Peers per round", "peers", whole_y=True)
    return _card("Peers per round", "How many peers each outer step was averaged over.", bar_chart(axes, [sizes]))


def _phases(report: Mapping[str, Any]) -> str:
    series = [
        Series(name, f"c{place}", _points([r["outer_step"], r["seconds"][name]] for r in report["rounds"]))
        for place, name in enumerate(PHASES)
    ]
    rest = ([r["outer_step"], _rest(r["seconds"])] for r in report["rounds"])
    series.append(Series("other", "quiet", _points(rest)))
    note = "Where the time of an outer step goes, the mean over its peers."
    chart = bar_chart(Axes("Time per phase", "seconds", unit=" s"), series)
    return _card("Time per phase", note, legend(series) + chart)


def _rest(seconds: Mapping[str, float]) -> float:
    return max(0.0, seconds["total"] - sum(seconds[name] for name in PHASES))


def _peers(report: Mapping[str, Any]) -> str:
    rows = [
        [
            f"<b>{escape(peer['name'])}</b>",
            _code(peer["peer_id"], 12, from_end=True),
            f'<span class="{"good" if peer["finished"] else "bad"}">{escape(peer["ending"])}</span>',
            f"{peer['outer_step']:,}",
            f"{peer['tokens']:,}",
            _megabytes(peer["bytes_sent"]),
            _megabytes(peer["bytes_received"]),
            f"{peer['compute_share']:.1%}",
            _code(peer["digest"], 12),
        ]
        for peer in report["peer_details"]
    ]
    heads = ["Peer", "Peer id", "End", "Outer step", "Tokens", "Sent", "Received", "Compute", "Last digest"]
    return _card("Peers", "", _table(heads, rows, numbers=range(3, 8)))


def _rounds(report: Mapping[str, Any]) -> str:
    rounds = report["rounds"]
    rows = [
        [
            f"{one['outer_step']:,}",
            f"{one['group_size']}",
            f"{one['attempts']}",
            _loss(one["train_loss"]),
            f"{one['seconds']['total']:.2f} s",
            _code(one["digest"], 24),
            f'<span class="{"good" if one["held_by"] == one["recorded_by"] else "bad"}">'
            f"{one['held_by']} of {one['recorded_by']}</span>",
        ]
        for one in rounds[-_SHOWN_ROUNDS:]
    ]
    heads = ["Outer step", "Peers", "Attempts", "Loss", "Time", "Digest", "Held by"]
    note = f"The last {_SHOWN_ROUNDS}; report.json has all {len(rounds):,}." if len(rounds) > _SHOWN_ROUNDS else ""
    content = f"<details><summary>{len(rows)} rounds</summary>{_table(heads, rows, numbers=range(5))}</details>"
    return _card("Digests", note or "The state after each outer step, and how many of its peers hold it.", content)


def _origin(report: Mapping[str, Any]) -> str:
    facts = {
        "recipe": report["recipe"],
        "seed": str(report["seed"]),
        "threads a peer": str(report["threads_per_peer"]),
        **report["versions"],
    }
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    return f'<footer><dl class="facts">{items}</dl></footer>'


def _card(title: str, note: str, content: str) -> str:
    words = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{words}{content}</section>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: range) -> str:
    """A table that scrolls by itself on a narrow screen; the cells are HTML already."""

    def cell(tag: str, place: int, content: str) -> str:
        return f'<{tag} class="number">{content}</{tag}>' if place in numbers else f"<{tag}>{content}</{tag}>"

    head = "".join(cell("th", place, escape(text)) for place, text in enumerate(heads))
    body = "".join(f"<tr>{''.join(cell('td', place, text) for place, text in enumerate(row))}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _points(pairs: Any) -> tuple[tuple[float, float], ...]:
    return tuple((float(x), float(y)) for x, y in pairs if y is not None)


def _code(text: str, length: int, from_end: bool = False) -> str:
    short = text if len(text) <= length else ("…" + text[-length:] if from_end else text[:length] + "…")
    return f'<code title="{escape(text)}">{escape(short)}</code>' if text else "–"


def _loss(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _megabytes(count: float) -> str:
    return f"{count / 1e6:,.1f} MB"


_LIGHT = (
    "--page:#f6f7f9;--card:#fff;--ink:#16191d;--soft:#5b6570;--line:#e3e7ec;--base:#aeb7c1;--good:#14764f;--bad:#b3261e;"
    "--quiet:#b4bcc6;--c0:#2563c9;--c1:#d2521f;--c2:#1b8a63;--c3:#8650c8;--c4:#b58300;--c5:#1192a8;--c6:#c23f83;"
    "--c7:#6d7786;"
)
_DARK = (
    "--page:#101316;--card:#191d22;--ink:#eceff2;--soft:#9aa5b1;--line:#2a3037;--base:#59636e;--good:#5fd0a0;"
    "--bad:#ff8a80;--quiet:#565f6a;--c0:#6aa5ff;--c1:#ff8f5e;--c2:#4fcf9c;--c3:#b98cf5;--c4:#e0b541;--c5:#4cc7dc;"
    "--c6:#f07fb5;--c7:#9aa5b1;"
)
_SERIES = "".join(
    f".{name}{{--s:var(--{name})}}" for name in ("quiet", "ink", *(f"c{place}" for place in range(_COLOURS)))
)
_STYLE = (
    f":root{{color-scheme:light dark;{_LIGHT}}}@media(prefers-color-scheme:dark){{:root{{{_DARK}}}}}{_SERIES}"
    """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:960px;margin:0 auto;padding:28px 16px 48px}
h1{font-size:26px;line-height:1.2;margin:0;overflow-wrap:anywhere}h2{font-size:17px;margin:0}
header p,.note{color:var(--soft);margin:4px 0 0}.note{font-size:13.5px}
section,.tile,.notices{background:var(--card);border:1px solid var(--line);border-radius:10px}
section{padding:18px 18px 14px;margin-top:16px}
.notices{margin:16px 0 0;padding:12px 18px 12px 34px;border-left:4px solid var(--bad);overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;margin:18px 0 0}
.tile{padding:12px 14px}.tile dt{color:var(--soft);font-size:13px}
.tile dd{margin:2px 0 0;font-size:21px;font-weight:600;line-height:1.25;font-variant-numeric:tabular-nums}
.tile small{display:block;font-size:12.5px;font-weight:400;color:var(--soft)}
.tile.good dd,span.good{color:var(--good)}.tile.bad dd,span.bad{color:var(--bad)}
.chart{display:block;width:100%;height:auto;margin-top:10px}.narrow{display:none}
.chart text{font:12px system-ui,-apple-system,"Segoe UI",sans-serif;fill:var(--soft);font-variant-numeric:tabular-nums}
.chart .mid{text-anchor:middle}.chart .end{text-anchor:end}
.grid{stroke:var(--line)}.base{stroke:var(--base)}
.line{fill:none;stroke:var(--s);stroke-width:1.8;stroke-linejoin:round}.line.quiet{stroke-width:1;opacity:.7}
.line.ink{stroke-width:2.4}
.dot{fill:var(--card);stroke:var(--s);stroke-width:2}.hover{fill:transparent}.hover:hover{fill:var(--s)}
.bar{fill:var(--s)}.bar:hover{opacity:.8}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;list-style:none;margin:10px 0 0;padding:0;font-size:13.5px}
.legend li{display:flex;align-items:center;gap:6px}
.swatch{width:12px;height:12px;border-radius:3px;background:var(--s)}
.scroll{overflow-x:auto;margin-top:8px}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:6px 9px;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:500}tbody tr:last-child td{border-bottom:0}
th:first-child,td:first-child{padding-left:0}.number{text-align:right}
code{font:12.5px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
summary{cursor:pointer;margin-top:8px;color:var(--soft)}
.nothing{color:var(--soft)}
footer{margin-top:20px;font-size:13px;color:var(--soft)}
.facts{display:flex;flex-wrap:wrap;gap:4px 20px;margin:0}.facts div{display:flex;gap:6px}
.facts dd{margin:0;color:var(--ink);overflow-wrap:anywhere}
"""
    f"@media(max-width:{2 * NARROW.width - 120}px){{.wide{{display:none}}.narrow{{display:block}}"
    "main{padding:18px 10px 32px}section{padding:14px 12px 10px}}"
)
