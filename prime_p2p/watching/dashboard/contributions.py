"""What each peer has given to the run: by what its groups have signed, or else by what its own news say."""

from __future__ import annotations

from html import escape

from prime_p2p.monitor import parts
from prime_p2p.watching.dashboard import pieces
from prime_p2p.watching.dashboard.certified import Certified
from prime_p2p.watching.view import RunView

MOST = 16  # peers that are shown


def contributions(view: RunView, certified: Certified) -> str:
    """The peers with the most tokens, each with its share of what all of them gave."""
    attested = [(share.peer_id, share.tokens) for share in certified.shares if share.tokens]
    note = (
        f"Tokens that groups of two and more have signed for, outer steps {certified.first:,} to {certified.last:,}."
        if attested
        else "Tokens in outer steps that each peer says it contributed, as far as seen here."
    )
    said = [(peer.peer_id, peer.tokens) for peer in view.peers.values() if peer.tokens]
    given = sorted(attested or said, key=lambda one: (-one[1], one[0]))
    labels = pieces.labels(view)
    total = sum(tokens for _, tokens in given)
    rows = "".join(
        f"<li><span>{escape(labels.get(peer, f'…{peer[-8:]}'))}</span><b>{tokens:,}</b>"
        '<svg class="share" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="rest" width="100" height="4"/>'
        f'<rect class="c0" width="{100 * tokens / total:.1f}" height="4"/>'
        f"</svg><small>{tokens / total:.1%}</small></li>"
        for peer, tokens in given[:MOST]
    )
    more = f'<p class="note">and {len(given) - MOST:,} peers more</p>' if len(given) > MOST else ""
    content = f'<ol class="shares">{rows}</ol>{more}' if rows else '<p class="nothing">None is known yet.</p>'
    return parts.card("Contribution per peer", note, content)
