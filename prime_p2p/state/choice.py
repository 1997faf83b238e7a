"""Which snapshot to fetch, from what others say they have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping

from prime_p2p.state.messages import Offers


def choose(offers: Mapping[str, Offers], digest: bytes, reach: int, begun: Container[bytes] = ()) -> list[bytes]:
    """The digests of snapshots worth fetching, best first; ``offers`` are the answers by peer.

    ``digest`` names the state that the lineage is at, or was at a moment ago: only peers that know it have a say, and
    a snapshot counts that most of those know whose history reaches back as far. It must be within ``reach`` outer steps
    of the newest state, so that a journal leads on from it when it has arrived. One that was ``begun`` goes first, then
    one that more peers give, then a newer one.
    """
    histories = {peer: _history(answer) for peer, answer in offers.items()}
    voters = [history for history in histories.values() if digest in history.values()]
    newest = max((max(history) for history in voters), default=0)
    givers: defaultdict[tuple[int, bytes], int] = defaultdict(int)
    for answer in offers.values():
        for step, snapshot in set(zip(answer.steps, answer.snapshots, strict=False)):
            givers[step, snapshot] += 1

    def agreed(step: int, snapshot: bytes) -> bool:
        said = [history[step] == snapshot for history in voters if step in history]
        return 2 * sum(said) > len(said) and newest - reach <= step <= newest

    fit = [(step, snapshot) for step, snapshot in givers if agreed(step, snapshot)]
    fit.sort(key=lambda one: (one[1] in begun, givers[one], one[0]), reverse=True)
    return [snapshot for _, snapshot in fit]


def _history(offers: Offers) -> dict[int, bytes]:
    return dict(enumerate(offers.history, start=offers.first))
