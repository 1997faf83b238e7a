"""One identity in two places: of two processes that say they are the same peer, the younger one ends.

A lock keeps two processes of one machine from it; a copy of the folder on another machine has a lock of its own. So
each process names its session in its heartbeats. Another session counts as alive only where two heartbeats of it are
found that were both sent since ours began: one that was killed sends none, and whoever takes its place is not refused.
"""

from __future__ import annotations

import logging
import secrets
from typing import Protocol

logger = logging.getLogger(__name__)

ID = 8  # bytes


class SessionBeat(Protocol):
    """What a heartbeat says of its session: its id, when it began, and when this was sent, on the swarm's clock."""

    @property
    def session(self) -> bytes: ...

    @property
    def began(self) -> float: ...

    @property
    def sent_at(self) -> float: ...


class Session:
    """This process's time as a peer, and the other ones that are seen under its identity."""

    def __init__(self, began: float) -> None:
        """``began`` is the swarm's time."""
        self.id = secrets.token_bytes(ID)
        self.began = began
        self.outranked = False
        """Whether an older session of our identity is alive."""
        self._first: dict[bytes, float] = {}  # when the first heartbeat that was seen of each other session was sent
        self._told: set[bytes] = set()

    def see(self, beat: SessionBeat) -> None:
        """A heartbeat under our own identity was found."""
        if len(beat.session) != ID or beat.session == self.id or beat.sent_at <= self.began:
            return
        if self._first.setdefault(beat.session, beat.sent_at) == beat.sent_at:
            return
        if (beat.began, beat.session) < (self.began, self.id):
            self.outranked = True
        elif beat.session not in self._told:
            self._told.add(beat.session)
            logger.warning("another process has this peer's identity; it is the younger one, and is to end")
