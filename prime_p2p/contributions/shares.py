"""What each peer has contributed, by the certificates of a run. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prime_p2p.swarm.certificate import Certificate


@dataclass(frozen=True)
class Share:
    """Of one peer. Tokens and commits are those in groups of two and more; what it did alone, only it has signed.

    ``token_share`` is of the tokens of all peers; ``commit_share`` is of the outer steps: those that it gave tokens to.
    """

    peer_id: str
    tokens: int = 0
    token_share: float = 0.0
    commits: int = 0
    commit_share: float = 0.0
    alone_tokens: int = 0
    alone_commits: int = 0


def shares(certificates: Iterable[Certificate]) -> list[Share]:
    """Those of checked certificates, one for each outer step; the largest first."""
    attested: dict[str, list[int]] = {}
    alone: dict[str, list[int]] = {}
    outer_steps = 0
    for certificate in certificates:
        group = certificate.group
        outer_steps += len(group.members) > 1
        for member in group.members:
            if member.weight:
                weights = attested if len(group.members) > 1 else alone
                weights.setdefault(member.peer_id, []).append(member.weight)
    tokens = sum(map(sum, attested.values()))
    found = []
    for peer in attested.keys() | alone.keys():
        of_groups, of_its_own = attested.get(peer, []), alone.get(peer, [])
        found.append(
            Share(
                peer_id=peer,
                tokens=sum(of_groups),
                token_share=sum(of_groups) / tokens if tokens else 0.0,
                commits=len(of_groups),
                commit_share=len(of_groups) / outer_steps if outer_steps else 0.0,
                alone_tokens=sum(of_its_own),
                alone_commits=len(of_its_own),
            )
        )
    return sorted(found, key=lambda share: (-share.tokens, -share.alone_tokens, share.peer_id))
