"""What a run is, and how to join it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from prime_p2p.errors import BadInput
from prime_p2p.monitor import parts
from prime_p2p.monitor.text import visible
from prime_p2p.public import show
from prime_p2p.public.look import Look
from prime_p2p.public.manifest import SignedManifest
from prime_p2p.public.qr import qr_drawing
from prime_p2p.public.run_address import RunAddress
from prime_p2p.watching.view import RunView

_ELSEWHERE = ("run", "progress", "peers", "value")  # lines about a run that other parts of the page have, or its recipe


def address(run: str, bootstrap: Sequence[str], signed: SignedManifest | None) -> str:
    """What others can join the run by: of a public run its address, of another one that of a peer."""
    name, _, author = run.partition("/")
    if not author:
        return bootstrap[0]
    known = signed.manifest.bootstraps if signed else []
    return str(RunAddress((known or bootstrap)[0], name, author))


def joining(run: str, at: str) -> str:
    """How to join a run at an address, with a button that copies it and a QR code of it."""
    if "/" in run:
        words, line = "Anybody may look at this run, and ask to take part with prime-p2p join and this address:", at
    else:
        words = "A peer that is given the recipe of this run joins it by the address of any other:"
        line = f"prime-p2p peer --recipe FILE --bootstrap {at}"
    return (
        f'<section class="join"><div><h2>Join this run</h2><p class="note">{words}</p>'
        f'<p class="address"><code id="address">{escape(visible(line))}</code>'
        f'<button type="button" data-copy="address">Copy</button></p></div>{qr_drawing(at)}</section>'
    )


def look_of(view: RunView, signed: SignedManifest) -> Look:
    """A run as ``public.show`` describes it."""
    return Look(signed, [{"outer_step": peer.outer_step, "pace": peer.beat.pace} for peer in view.present])


def described(view: RunView, signed: SignedManifest | None) -> str:
    """What its author says of a run, and its recipe."""
    if signed is None:
        return parts.card("What this run is", f"Run {view.name} is not a public one: its peers have its recipe.", "")
    try:
        look = look_of(view, signed)
        lines = [(word, text) for word, text in show.lines(look) if word not in _ELSEWHERE]
        recipe = look.recipe.to_toml()
    except BadInput:
        note = f"Its manifest is for protocol {signed.manifest.protocol}, which this program does not speak."
        return parts.card("What this run is", note, "")
    words = "".join(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in lines)
    text = "\n".join(visible(line) for line in recipe.splitlines())
    content = (
        f'<dl class="said">{words}</dl><details><summary>The recipe that holds at present</summary>'
        f"<pre>{escape(text)}</pre></details>"
    )
    return parts.card("What this run is", "What its author has signed.", content)


def phase(view: RunView, signed: SignedManifest | None) -> str:
    """Whether the run goes on, in a word or two."""
    said = "train"
    if signed is not None:
        try:
            said = signed.manifest.terms.phase_at(view.outer_step)
        except BadInput:
            return "speaks another protocol"
    return show.PHASES[said] if view.present or said != "train" else "has nobody there"


def as_json(view: RunView, signed: SignedManifest | None) -> dict[str, Any] | None:
    """What its author says of a run, as plain values; None where nobody signs for it, or it cannot be read."""
    try:
        return None if signed is None else show.as_json(look_of(view, signed))
    except BadInput:
        return None
