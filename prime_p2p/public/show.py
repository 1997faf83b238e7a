"""What a public run is at present, for whoever asks: nothing is joined, and nothing written."""

from __future__ import annotations

from typing import Any

from prime_p2p.monitor.text import duration, printable
from prime_p2p.public.look import Look
from prime_p2p.public.manifest import ChangeEntry
from prime_p2p.public.run_address import fingerprint
from prime_p2p.terms import CHANGEABLE

PHASES = {"train": "trains", "pause": "is paused", "end": "has ended"}


def as_json(look: Look) -> dict[str, Any]:
    """All there is to say, as plain values."""
    manifest = look.signed.manifest
    return {
        "run": manifest.name,
        "author": manifest.author,
        "sequence": manifest.sequence,
        "issued_at": manifest.issued_at,
        "phase": manifest.terms.phase_at(look.step),
        "admission": manifest.admission.model_dump(),
        "minimum_version": manifest.minimum_version,
        "protocol": manifest.protocol,
        "bootstraps": manifest.bootstraps,
        "outer_step": look.step,
        "outer_steps": look.recipe.run.outer_steps,
        "pace": look.pace,
        "peers": list(look.peers),
        "recipe": look.recipe.model_dump(mode="json"),
        "changes": [change.model_dump() for change in announced(look)],
    }


def lines(look: Look) -> list[tuple[str, str]]:
    """The same for people: pairs of a word and what there is to say."""
    manifest, recipe = look.signed.manifest, look.recipe
    rule, listed, banned = manifest.admission.rule, manifest.admission.peers, manifest.admission.banned
    words = [rule, *([f"{len(listed)} listed"] if rule == "allow" else []), *([f"{len(banned)} banned"] * bool(banned))]
    goal = f"of {recipe.run.outer_steps}" if recipe.run.outer_steps else "of no end"
    pace = f", {duration(look.pace)} each" if look.pace else ""
    least = manifest.minimum_version
    said = [
        ("run", f"{manifest.name}, which {PHASES[manifest.terms.phase_at(look.step)]}"),
        ("author", f"{manifest.author}, fingerprint {fingerprint(manifest.author)}"),
        ("manifest", f"{manifest.sequence}"),
        ("progress", f"outer step {look.step} {goal}{pace}"),
        ("peers", f"{len(look.peers)} there" if look.peers else "nobody there just now"),
        ("admission", ", ".join(words)),
        ("version", "any of this protocol" if least == "0" else f"prime_p2p {least} or newer"),
        *(("value", text) for text in _values(look)),
        *(("change", _change(change, look.step)) for change in announced(look)),
    ]
    return [(word, printable(text)) for word, text in said]


def announced(look: Look) -> list[ChangeEntry]:
    """The changes that the run has not come to yet."""
    return [change for change in look.signed.manifest.changes if change.at > look.step]


def _values(look: Look) -> list[str]:
    """The values in force of all that an author may change."""
    table = look.recipe.model_dump(mode="json")
    return [f"{section}.{key} = {table[section][key]}" for section, keys in CHANGEABLE.items() for key in keys]


def _change(change: ChangeEntry, step: int) -> str:
    values = [f"{key} = {value}" for key, value in change.values.items()]
    what = ", ".join([*values, f"the run {PHASES[change.phase]}"])
    return f"from outer step {change.at} on, {change.at - step} from here: {what}"
