"""Which certificates are still to be fetched, and from whom. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping


class Wanted:
    """The certificates that some peers say they have.

    Where they have different ones of an outer step, that which most of them hold is wanted, of equals the one with the
    smaller id. A member keeps the certificate of the commit that it has made by itself: so after a fork this is that of
    the lineage which more of these peers were on, and one that a few have made up is not it while they are the fewer.
    """

    def __init__(
        self,
        held: Mapping[str, Mapping[int, bytes]],
        lacks: Callable[[int], bool] = lambda step: True,
        least: int = 1,
    ) -> None:
        """``held`` has the ids by peer and outer step. Only steps that the asker ``lacks`` and ids that at least
        ``least`` peers hold are wanted.
        """
        self._holders: dict[int, dict[bytes, set[str]]] = {}
        for peer, ids in held.items():
            for step, id_ in ids.items():
                if lacks(step):
                    self._holders.setdefault(step, {}).setdefault(id_, set()).add(peer)
        few = [
            (peer, step)
            for step, holders in self._holders.items()
            for peers in holders.values()
            if len(peers) < least
            for peer in peers
        ]
        self.held_by_few = sorted(few)
        """The peers that hold something else than so many do, and of which outer step."""
        for peer, step in few:
            self.refuse(peer, step)

    def __bool__(self) -> bool:
        return bool(self._holders)

    def orders(self, most: int) -> dict[str, dict[int, bytes]]:
        """What to ask each peer for next, at most so many outer steps of each: the newest first, with their ids."""
        orders: dict[str, dict[int, bytes]] = {}
        for step in sorted(self._holders, reverse=True):
            id_ = self._chosen(step)
            peer = min(self._holders[step][id_], key=lambda holder: (len(orders.get(holder, ())), holder))
            order = orders.setdefault(peer, {})
            if len(order) < most:
                order[step] = id_
        return orders

    def _chosen(self, step: int) -> bytes:
        holders = self._holders[step]
        return min(holders, key=lambda id_: (-len(holders[id_]), id_))

    def done(self, step: int) -> None:
        """The certificate of this outer step is here."""
        self._holders.pop(step, None)

    def refuse(self, peer: str, step: int) -> None:
        """What the peer has of this outer step is no certificate."""
        holders = self._holders.get(step, {})
        for id_ in [id_ for id_, peers in holders.items() if peer in peers]:
            holders[id_].discard(peer)
            if not holders[id_]:
                del holders[id_]
        if not holders:
            self.done(step)

    def lose(self, peer: str) -> None:
        """The peer gives nothing of what it said it has."""
        for step in list(self._holders):
            self.refuse(peer, step)
