"""``report.html``: the report on one self-contained page, without scripts and without anything to load."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from prime_p2p.monitor import parts
from prime_p2p.monitor.report import HTML_NAME
from prime_p2p.monitor.style import STYLE
from prime_p2p.monitor.text import duration

_SHOWN_ROUNDS = 200  # in the table of rounds; the JSON has them all


def write_html(report: Mapping[str, Any], directory: Path) -> Path:
    """Write ``report.html`` into an existing folder; returns its path."""
    path = directory / HTML_NAME
    path.write_text(page(report), encoding="utf-8")
    return path


def page(report: Mapping[str, Any]) -> str:
    """The whole HTML document. Every text of the report is escaped."""
    title = f"{report['name']}: {_peers_of(report)}, {report['outer_steps']} outer steps"
    curves = report["curves"]
    sections = [
        _header(report),
        _notices(report),
        _tiles(report),
        parts.losses(list(curves["train"].items()), curves["validation"], report["rounds"]),
        parts.group_sizes(report["rounds"]),
        parts.phases(report["rounds"]),
        _peers(report),
        _rounds(report),
        _origin(report),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>"
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
        ("Validation loss", parts.loss(loss["end"]), f"from {parts.loss(loss['start'])} at the start", ""),
        ("Peers finished", f"{report['peers_finished']} of {report['peers']}", "", "" if all_finished else "bad"),
        ("Digests", digest_text, "at every outer step", digest_class),
        ("Compute share", f"{report['compute_share']:.1%}", "of the time in inner steps", ""),
        ("Sent per peer", parts.megabytes(report["bytes_sent_per_peer"]), "over the whole run", ""),
    ]
    return parts.tiles(tiles)


def _peers(report: Mapping[str, Any]) -> str:
    rows = [
        [
            f"<b>{escape(peer['name'])}</b>",
            parts.code(peer["peer_id"], 12, from_end=True),
            f'<span class="{"good" if peer["finished"] else "bad"}">{escape(peer["ending"])}</span>',
            f"{peer['outer_step']:,}",
            f"{peer['tokens']:,}",
            parts.megabytes(peer["bytes_sent"]),
            parts.megabytes(peer["bytes_received"]),
            f"{peer['compute_share']:.1%}",
            parts.code(peer["digest"], 12),
        ]
        for peer in report["peer_details"]
    ]
    heads = ["Peer", "Peer id", "End", "Outer step", "Tokens", "Sent", "Received", "Compute", "Last digest"]
    return parts.card("Peers", "", parts.table(heads, rows, numbers=range(3, 8)))


def _rounds(report: Mapping[str, Any]) -> str:
    rounds = report["rounds"]
    rows = [
        [
            f"{one['outer_step']:,}",
            f"{one['group_size']}",
            f"{one['attempts']}",
            parts.loss(one["train_loss"]),
            f"{one['seconds']['total']:.2f} s",
            parts.code(one["digest"], 24),
            f'<span class="{"good" if one["held_by"] == one["recorded_by"] else "bad"}">'
            f"{one['held_by']} of {one['recorded_by']}</span>",
        ]
        for one in rounds[-_SHOWN_ROUNDS:]
    ]
    heads = ["Outer step", "Peers", "Attempts", "Loss", "Time", "Digest", "Held by"]
    note = f"The last {_SHOWN_ROUNDS}; report.json has all {len(rounds):,}." if len(rounds) > _SHOWN_ROUNDS else ""
    content = f"<details><summary>{len(rows)} rounds</summary>{parts.table(heads, rows, numbers=range(5))}</details>"
    return parts.card("Digests", note or "The state after each outer step, and how many of its peers hold it.", content)


def _origin(report: Mapping[str, Any]) -> str:
    facts = {
        "recipe": report["recipe"],
        "seed": str(report["seed"]),
        "threads a peer": str(report["threads_per_peer"]),
        **report["versions"],
    }
    return f"<footer>{parts.facts(facts.items())}</footer>"
