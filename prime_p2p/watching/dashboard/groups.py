"""Who reduced with whom: the last rounds, a column each, and the peers that were in them."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from prime_p2p.monitor import parts
from prime_p2p.watching.dashboard import pieces
from prime_p2p.watching.view import PeerView, RunView

MOST_ROUNDS = 30
MOST_ROWS = 64
_NARROW_ROUNDS = 10  # that a phone shows
_IN, _ODD, _TOLD, _OUT = "in", "odd", "told", "out"
_GLYPHS = {_IN: "●", _ODD: "◆", _TOLD: "○", _OUT: "·"}
_WORDS = {
    _IN: "in the group",
    _ODD: "in a group with another result",
    _TOLD: "in the group, as others of it say",
    _OUT: "not in the group",
}


def groups(view: RunView) -> str:
    """A table of rounds and peers."""
    rounds = view.rounds()[-MOST_ROUNDS:]
    told = {one["outer_step"]: _told_of(one["outer_step"], view) for one in rounds}
    rows = [(peer, [_cell(peer, one["outer_step"], one["digest"], told) for one in rounds]) for peer in _ordered(view)]
    rows = [(peer, cells) for peer, cells in rows if any(cell != _OUT for cell in cells)]
    if not rows:
        return parts.card("Groups of the last rounds", "", '<p class="nothing">No outer step is known yet.</p>')
    labels = pieces.labels(view)
    old = len(rounds) - _NARROW_ROUNDS
    heads = "".join(
        f"<th scope=col{_old(place < old)}>{one['outer_step'] if one['outer_step'] % 5 == 0 else ''}</th>"
        for place, one in enumerate(rounds)
    )
    body = "".join(
        f"<tr><th scope=row>{escape(labels[peer.peer_id])}</th>"
        + "".join(
            f'<td class="{cell}{" old" if place < old else ""}"'
            f' title="outer step {rounds[place]["outer_step"]}: {_WORDS[cell]}">{_GLYPHS[cell]}</td>'
            for place, cell in enumerate(cells)
        )
        + "</tr>"
        for peer, cells in rows[:MOST_ROWS]
    )
    key = "".join(f'<li><i class="{cell}">{_GLYPHS[cell]}</i>{_WORDS[cell]}</li>' for cell in (_IN, _TOLD, _ODD))
    more = f'<p class="note">and {len(rows) - MOST_ROWS:,} peers more</p>' if len(rows) > MOST_ROWS else ""
    return parts.card(
        "Groups of the last rounds",
        "Who averaged with whom: a column for each outer step.",
        f'<ul class="legend key">{key}</ul><div class="scroll"><table class="groups"><thead><tr><td></td>{heads}</tr>'
        f"</thead><tbody>{body}</tbody></table></div>{more}",
    )


def _ordered(view: RunView) -> list[PeerView]:
    return sorted(view.peers.values(), key=lambda peer: (peer.gone, peer.name.casefold(), peer.peer_id))


def _told_of(step: int, view: RunView) -> set[str]:
    """The peers that anybody who made an outer step says were in its group."""
    return {member for peer in view.peers.values() if step in peer.steps for member in peer.steps[step].group}


def _cell(peer: PeerView, step: int, digest: str, told: Mapping[int, set[str]]) -> str:
    made = peer.steps.get(step)
    if made is not None:
        return _IN if made.digest == digest else _ODD
    return _TOLD if peer.peer_id in told[step] else _OUT


def _old(is_old: bool) -> str:
    return ' class="old"' if is_old else ""
