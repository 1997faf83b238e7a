"""What came from outside and was dropped: counted by kind, and said in few lines, however much of it comes.

Whoever drops something that another peer sent notes it here. The counts are those of the process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from prime_p2p.network.frames import one_line

log = logging.getLogger(__name__)

QUIET = 60.0  # seconds: in so long there is one line of a kind, beside the first ones of peers
FIRSTS = 8  # lines of a kind in that time, also where every one is the first of its peer: identities cost nothing
_REMEMBERED = 1024  # pairs of a kind and a peer of which the first was said
_LONGEST = 200  # characters of a reason


@dataclass
class _Said:
    """What was said of a kind lately."""

    since: float
    lines: int = 0
    unsaid: int = 0


class Dropped:
    """Counts of what was dropped, by kind. Kinds are plain words of ours; reasons may hold what strangers wrote.

    Safe to call from any thread.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._said: dict[str, _Said] = {}
        self._heard_of: OrderedDict[tuple[str, str], None] = OrderedDict()

    def note(self, kind: str, reason: object, peer_id: str = "") -> None:
        """Something of this kind was dropped; ``peer_id`` is the sender, where it is known."""
        with self._lock:
            self._counts[kind] += 1
            more = self._turn(kind, peer_id)
        if more is not None:
            others = f" ({more} more since the last line)" if more else ""
            sender = f" from {one_line(peer_id)}" if peer_id else ""
            log.warning("dropped a %s%s: %s%s", kind, sender, one_line(reason, _LONGEST), others)

    def _turn(self, kind: str, peer_id: str) -> int | None:
        """How many were dropped without a line since the last one; None where this one gets none either."""
        now = self._now()
        said = self._said.setdefault(kind, _Said(now))
        if now - said.since >= QUIET:
            said.since, said.lines = now, 0
        first = (kind, peer_id) not in self._heard_of
        self._heard_of[kind, peer_id] = None
        self._heard_of.move_to_end((kind, peer_id))
        if len(self._heard_of) > _REMEMBERED:
            self._heard_of.popitem(last=False)
        if said.lines and not (first and said.lines < FIRSTS):
            said.unsaid += 1
            return None
        said.lines += 1
        more, said.unsaid = said.unsaid, 0
        return more

    def counts(self) -> Counter[str]:
        """How many of each kind were dropped so far."""
        with self._lock:
            return self._counts.copy()


_dropped = Dropped()
note = _dropped.note
counts = _dropped.counts
