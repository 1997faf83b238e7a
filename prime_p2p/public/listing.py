"""The runs that are known somewhere: public ones with their manifests, others by what their peers say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prime_p2p.monitor.text import aligned, printable
from prime_p2p.network.node import Node
from prime_p2p.network.version import PROTOCOL
from prime_p2p.network.visit import on_a_node
from prime_p2p.public import manifest_records
from prime_p2p.public.run_address import RunAddress
from prime_p2p.swarm import membership

_HEADS = ("run", "peers", "outer step", "state", "admission", "address")


def listed(bootstrap: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each run; the outer step is None where nobody is there to say it.

    Raises BadInput, Unreachable as ``Node.create`` does.
    """

    async def ask(node: Node) -> list[dict[str, Any]]:
        names = await membership.runs(node)
        return [await _row(node, name, bootstrap[0]) for name in names]

    return on_a_node(bootstrap, ask)


async def _row(node: Node, run: str, bootstrap: str) -> dict[str, Any]:
    peers = await membership.status(node, run)
    step = max((row["outer_step"] for row in peers), default=None)
    name, _, author = run.partition("/")
    found: dict[str, Any] = {"run": name, "peers": len(peers), "outer_step": step}
    signed = await manifest_records.newest(node, run) if author else None
    if signed is None:
        return found | {"public": False}
    if signed.manifest.protocol != PROTOCOL:
        return found | {"public": True, "protocol": signed.manifest.protocol}
    terms = signed.manifest.terms
    return found | {
        "public": True,
        "address": str(RunAddress(bootstrap, name, author)),
        "author": signed.manifest.author,
        "sequence": signed.seal.sequence,
        "outer_steps": terms.recipe_at(step or 0).run.outer_steps,
        "phase": terms.phase_at(step or 0),
        "admission": signed.manifest.admission.rule,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows for people, a line each."""
    if not rows:
        return "no run is known there"
    return aligned([_HEADS, *(_cells(row) for row in rows)])


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    goal = f" of {row['outer_steps']}" if row.get("outer_steps") else ""
    progress = "-" if row["outer_step"] is None else f"{row['outer_step']}{goal}"
    trains = "trains" if row["peers"] else "nobody there"
    kind = f"protocol {row['protocol']}" if "protocol" in row else "not public"
    state = {"train": trains, "pause": "paused", "end": "ended"}.get(row.get("phase", ""), kind)
    texts = (row["run"], row["peers"], progress, state, row.get("admission", ""))
    return (*(printable(str(text)) for text in texts), str(row.get("address", "")))
