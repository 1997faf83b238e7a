"""Which peer is meant by the end of its id, as lists of peers show it."""

from __future__ import annotations

import re
from collections.abc import Collection

from prime_p2p.errors import BadInput
from prime_p2p.network.identity import is_peer_id

SHORTEST = 6  # characters of an end
_END = re.compile(rf"(?:…|\.\.\.)?([1-9A-HJ-NP-Za-km-z]{{{SHORTEST},}})")


def check(given: str) -> None:
    """Raises BadInput for what is neither a peer id nor the end of one."""
    if not is_peer_id(given) and _END.fullmatch(given) is None:
        raise BadInput(
            f"{given!r} is no peer id like 12D3KooW..., nor the end of one, of at least {SHORTEST} characters"
        )


def whole(given: str, seen: Collection[str]) -> str:
    """The id that is ``given``, or the one of those ``seen`` that ends in it. Raises BadInput where not one does."""
    check(given)
    if is_peer_id(given):
        return given
    end = given.lstrip("….")
    meant = sorted(peer for peer in seen if peer.endswith(end))
    if not meant:
        raise BadInput(f"no peer of the run that is there has an id that ends in {end}: give the whole id")
    if len(meant) > 1:
        raise BadInput(f"the ids of {len(meant)} peers end in {end}, give the whole one: {' or '.join(meant[:4])}")
    return meant[0]
