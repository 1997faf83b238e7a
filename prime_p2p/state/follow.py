"""Going where the run is: for a peer that joins, that missed outer steps, or whose lineage lost against another."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterable, Sequence

from prime_p2p.errors import PrimeError
from prime_p2p.network.frames import FrameError
from prime_p2p.network.streams import StreamError
from prime_p2p.outer.journal import Journal, JournalEntry
from prime_p2p.outer.nesterov import OuterOptimizer
from prime_p2p.outer.state import OuterState
from prime_p2p.state.transfer import StateClient, TransferError
from prime_p2p.swarm.swarm import Lineage, Swarm

logger = logging.getLogger(__name__)

JOIN_DEADLINE = 60.0  # seconds a joining peer tries to get the run's state from those who have it


class Diverged(PrimeError):
    """An update did not lead to the state it was said to lead to."""


class Follower:
    """Fetches what leads a peer's outer state to that of the others, from whoever gives it."""

    def __init__(self, swarm: Swarm, client: StateClient, journal: Journal, outer: OuterOptimizer) -> None:
        self._swarm = swarm
        self._client = client
        self._journal = journal
        self._outer = outer

    def state_of_the_run(self, n: int) -> OuterState | None:
        """The state of n parameters that others hold, for a peer that has none; None where nobody holds any.

        Raises PrimeError where peers hold one and none of them gives it within a minute.
        """
        deadline = time.monotonic() + JOIN_DEADLINE
        lineage = self._swarm.best_lineage()
        while lineage is not None:
            state = self.snapshot(lineage, n)
            if state is not None:
                return state
            if time.monotonic() > deadline:
                holders = ", ".join(lineage.peers)
                raise PrimeError(f"no peer gave us the state of run {self._swarm.run!r}; it is held by {holders}")
            lineage = self._swarm.best_lineage(refresh=True)
        return None

    def missed_updates(self, state: OuterState, peers: Iterable[str]) -> list[JournalEntry]:
        """Fetch into the journal the updates that lead on from ``state``; [] where none of ``peers`` has any."""
        for peer in _shuffled(peers):
            try:
                entries = self._swarm.transfer(self._client.updates(peer, state, self._journal))
            except (StreamError, FrameError, TransferError) as error:
                logger.info("no missed updates: %s", error)
                continue
            if entries:
                return entries
        return []

    def replayed(self, state: OuterState, entries: Sequence[JournalEntry], lineage: Lineage | None) -> OuterState:
        """``state`` after the outer steps that others made without us, made again; it is changed in place.

        Where an update does not lead where it was said to, somebody gave us a wrong one and our state is of no more
        use: then a snapshot of ``lineage`` takes its place. Raises Diverged where nobody gives one.
        """
        for entry in entries:
            try:
                _, update = self._journal.read(entry.step_before)
            except (KeyError, OSError) as error:  # damaged, or gone: what we have is whole, if not the newest
                logger.warning("the update of outer step %d cannot be read: %s", entry.step_before + 1, error)
                return (None if lineage is None else self.snapshot(lineage, len(state.anchor))) or state
            if state.apply(update, entry.tokens, self._outer) != entry.digest_after:
                wrong = f"the update of outer step {state.step} did not lead where it was said to"
                logger.warning("%s; taking a snapshot", wrong)
                snapshot = None if lineage is None else self.snapshot(lineage, len(state.anchor))
                if snapshot is None:
                    raise Diverged(f"{wrong}, and nobody gives a snapshot; start this peer again in an empty folder")
                return snapshot
            logger.info("replayed the update of outer step %d", state.step)
        return state

    def snapshot(self, lineage: Lineage, n: int) -> OuterState | None:
        """The newest state of n parameters of one who holds this lineage; None where nobody gives it."""
        for peer in _shuffled(lineage.peers):
            try:
                state = self._swarm.transfer(self._client.snapshot(peer, n))
            except (StreamError, FrameError, TransferError) as error:
                logger.info("no snapshot: %s", error)
                continue
            if state.tokens >= lineage.tokens:
                logger.info("took the state of outer step %d from %s", state.step, peer)
                return state
        return None


def _shuffled(peers: Iterable[str]) -> list[str]:
    """In another order each time, so that many who ask spread over those who give."""
    listed = list(peers)
    random.shuffle(listed)
    return listed
