"""What each peer has given to the run, by what its own news say."""

from __future__ import annotations

from html import escape

from prime_p2p.monitor import parts
from prime_p2p.watching.dashboard import pieces
from prime_p2p.watching.view import RunView

MOST = 16  # peers that are shown


def contributions(view: RunView) -> str:
    """The peers with the most tokens, each with its share of what all of them gave."""
    peers = sorted((peer for peer in view.peers.values() if peer.tokens), key=lambda peer: (-peer.tokens, peer.peer_id))
    labels = pieces.labels(view)
    total = sum(peer.tokens for peer in peers)
    rows = "".join(
        f"<li><span>{escape(labels[peer.peer_id])}</span><b>{peer.tokens:,}</b>"
        '<svg class="share" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="rest" width="100" height="4"/>'
        f'<rect class="c0" width="{100 * peer.tokens / total:.1f}" height="4"/>'
        f"</svg><small>{peer.tokens / total:.1%}</small></li>"
        for peer in peers[:MOST]
    )
    more = f'<p class="note">and {len(peers) - MOST:,} peers more</p>' if len(peers) > MOST else ""
    content = f'<ol class="shares">{rows}</ol>{more}' if rows else '<p class="nothing">None is known yet.</p>'
    note = "Tokens in outer steps that each peer says it contributed, as far as seen here."
    return parts.card("Contribution per peer", note, content)
