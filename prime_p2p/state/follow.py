"""Going where the run is: for a peer that joins, that missed outer steps, or whose lineage lost against another."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prime_p2p.agreement import first_difference
from prime_p2p.allreduce.codec import BlockVector, Float32
from prime_p2p.errors import BadInput, PrimeError
from prime_p2p.long_work import Advance, Watch, ignore, unwatched
from prime_p2p.network.frames import FrameError
from prime_p2p.network.streams import StreamError
from prime_p2p.outer.journal import Journal, JournalEntry
from prime_p2p.outer.state import OuterState
from prime_p2p.outer.terms import OuterTerms
from prime_p2p.state.client import Lacking, StateClient
from prime_p2p.state.fork import Held, abandoned
from prime_p2p.state.messages import TransferError, description_hash
from prime_p2p.state.piece_file import Arrays
from prime_p2p.state.snapshots import Snapshots
from prime_p2p.state.standing import Standing
from prime_p2p.state.undo import Undo
from prime_p2p.swarm.swarm import Leaving, Lineage, Swarm

logger = logging.getLogger(__name__)

JOIN_DEADLINE = 60.0  # seconds without a piece that a joining peer tries to get the run's state from those who have it
REMINDER = 20.0  # seconds after which a peer says again that it waits for somebody with a state


class Diverged(PrimeError):
    """An update did not lead to the state it was said to lead to."""


@dataclass(frozen=True)
class CaughtUp:
    """How a peer got from one state to another: updates replayed, snapshots fetched, bytes received for all that."""

    updates: int = 0
    snapshots: int = 0
    bytes: int = 0

    def __add__(self, other: CaughtUp) -> CaughtUp:
        return CaughtUp(self.updates + other.updates, self.snapshots + other.snapshots, self.bytes + other.bytes)

    def __str__(self) -> str:
        ways = [f"{self.snapshots} snapshot"] if self.snapshots else []
        ways += [f"{self.updates} missed updates"] if self.updates else []
        return f"{' and '.join(ways) or 'nothing'}, {self.bytes / 1e6:.1f} MB"


@dataclass(frozen=True)
class Means:
    """What a follower works with: ``directory`` is for files that do not outlive this process; ``watch`` is told of
    what takes long."""

    client: StateClient
    snapshots: Snapshots
    standing: Standing
    journal: Journal
    directory: Path
    watch: Watch = unwatched


class Follower:
    """Leads a peer's outer state to that of the others, with what any of them gives."""

    def __init__(self, swarm: Swarm, means: Means, terms: OuterTerms) -> None:
        self._swarm = swarm
        self._client = means.client
        self._snapshots = means.snapshots
        self._standing = means.standing
        self._journal = means.journal
        self._directory = means.directory
        self._watch = means.watch
        self._terms = terms
        self._updates = self._fetched = self._bytes = 0

    @property
    def done(self) -> CaughtUp:
        """What was done since ``account`` was asked last."""
        if not self._updates and not self._fetched:
            return CaughtUp()
        return CaughtUp(self._updates, self._fetched, self._client.bytes_received - self._bytes)

    def account(self) -> CaughtUp:
        """The same, and begin anew."""
        done = self.done
        self._updates = self._fetched = 0
        self._bytes = self._client.bytes_received
        return done

    def check_agreement(self, ours: dict[str, Any]) -> None:
        """Refuse, with BadInput, to train something else than those who hold a state of the run. One of them that
        trains the same is enough to join: anybody can say of himself that he trains something else."""
        self._swarm.check_protocol()
        held = {peer: beat.description for peer, beat in self._swarm.others().items() if beat.has_state}
        for peer in held if description_hash(ours) not in held.values() else ():
            try:
                theirs = self._swarm.call(self._client.description(peer))
            except (StreamError, FrameError, TransferError) as error:
                logger.info("no description of the run: %s", error)
                continue
            difference = first_difference(ours, theirs)
            if difference is not None:
                raise BadInput(f"run {self._swarm.run!r} trains something else, see peer {peer}: {difference}")

    def state_of_the_run(
        self, initial: OuterState, refill: Callable[[Float32, Float32], None], may_start: bool = True
    ) -> OuterState | None:
        """The state that others hold, for a peer that has its ``initial`` one; None where nobody does: we may start.

        It is as new as that of the others was when we began, and is made in the arrays of ``initial``; where that is
        needed after all, ``refill`` writes the initial anchor and momentum again. Without anybody who holds a state, a
        peer that may not start the run waits for one. Raises PrimeError where peers hold a state and for a minute none
        of them gives any of it.
        """
        spoilt = False

        def initial_again() -> OuterState:
            if spoilt:
                initial.put_back(initial.step, initial.tokens, refill)
            return initial

        lineage = self._swarm.best_lineage() if may_start else self._lineage_to_come()
        deadline, pieces = time.monotonic() + JOIN_DEADLINE, 0
        while lineage is not None:
            if lineage.digest == initial.digest:
                return initial_again()
            spoilt = True
            state = self._snapshot(lineage, len(initial.anchor), (initial.anchor, initial.momentum))
            if state is not None:
                self._replay(state, lineage.peers, lineage)
                if state.tokens >= lineage.tokens:
                    return state
                state.end()  # its arrays are needed again
            if self._snapshots.pieces > pieces:
                deadline, pieces = time.monotonic() + JOIN_DEADLINE, self._snapshots.pieces
            if time.monotonic() > deadline:
                holders = ", ".join(lineage.peers)
                raise PrimeError(f"no peer gave us the state of run {self._swarm.run!r}; it is held by {holders}")
            lineage = self._swarm.best_lineage(refresh=True)
            if lineage is None and not may_start:
                lineage = self._lineage_to_come()
        initial_again()
        return None

    def _lineage_to_come(self) -> Lineage:
        """The state that others hold, which we wait for as long as it takes: ours would be that of another run."""
        while (lineage := self._swarm.best_lineage()) is None:
            if self._swarm.wait_for_peers(1, REMINDER):
                continue
            logger.warning("nobody holds a state of run %r, and this peer may not start it: waiting", self._swarm.run)
            if self._swarm.leaving:
                raise Leaving("this peer is leaving")
        return lineage

    def follow(
        self, state: OuterState, peers: Collection[str], lineage: Lineage | None, moving: Callable[[], None]
    ) -> OuterState:
        """The state that the others have gone on to: ``state``, changed in place, or another one.

        The updates that were missed are replayed where a journal of ``peers`` leads on; where none does, a snapshot of
        ``lineage``, a better one than ours, takes the place of our state. ``moving`` is called before any of that
        changes it. Raises Diverged where that left us with a state of no use.
        """
        if self._replay(state, peers, lineage, moving) or lineage is None:
            return state
        ours = Held.of(state, self._journal.history_of(state.step, state.digest))
        snapshot = self._snapshot(lineage, len(state.anchor))
        if snapshot is not None:
            self._replay(snapshot, lineage.peers, lineage)
            if snapshot.tokens >= lineage.tokens:
                self._tell_of_a_fork(ours, snapshot, lineage.peers)
                moving()
                return snapshot
        return state

    def _tell_of_a_fork(self, ours: Held, taken: OuterState, holders: Iterable[str]) -> None:
        """Say what of our history is given up, as far as one of those who hold the other one remembers theirs."""
        history: dict[int, bytes] = {}
        for peer in holders:
            try:
                offers = self._swarm.transfer(self._client.offers(peer))
            except (StreamError, FrameError, TransferError) as error:
                logger.info("%s does not say what led to its state: %s", peer, error)
                continue
            history = dict(enumerate(offers.history, offers.first))
            break
        told = abandoned(ours, Held.of(taken, history))
        if told is not None:
            logger.warning("%s", told)

    def _replay(
        self,
        state: OuterState,
        peers: Iterable[str],
        lineage: Lineage | None,
        moving: Callable[[], None] = lambda: None,
    ) -> int:
        """Make the outer steps again that others made without us; returns how many. ``state`` is changed in place.

        Every update is checked by the state it leads to, before the next one is asked for and before others can have
        it from our journal. After a wrong one we are where we began, and go on with what another peer gives.
        """
        undo: Undo | None = None
        made = 0
        asking = [peer for peer in peers if self._standing.good(peer)]
        random.shuffle(asking)
        with ExitStack() as watched:
            advance: Advance = ignore
            while asking and made < self._journal.length:
                peer = asking[-1]
                found = self._next_update(peer, state)
                if found is None:
                    asking.pop()
                    continue
                entry, update = found
                if made == 0 and undo is None:
                    moving()
                    undo = self._undo(state)
                    missed = max(0, lineage.step - state.step) if lineage else 0
                    advance = watched.enter_context(self._watch("replaying missed updates", missed or None, "updates"))
                if self._leads_where_it_should(
                    state, entry, update, lineage if lineage and peer in lineage.peers else None
                ):
                    made += 1
                    advance(1)
                    continue
                self._standing.fail(peer, f"its update of outer step {state.step} was a wrong one")
                asking.pop()
                made = 0
                self._go_back(undo, state)
        self._updates += made
        if made:
            logger.info("replayed %d updates, up to outer step %d", made, state.step)
        return made

    def _next_update(self, peer: str, state: OuterState) -> tuple[JournalEntry, BlockVector] | None:
        try:
            asking = self._client.update(peer, state.step, state.digest, len(state.anchor))
            entry, update, ahead = self._swarm.transfer(asking)
        except Lacking:
            return None
        except (StreamError, FrameError, TransferError) as error:
            self._standing.fail(peer, error)
            return None
        return (entry, update) if ahead <= self._journal.length else None  # else a snapshot it is

    def _leads_where_it_should(
        self, state: OuterState, entry: JournalEntry, update: BlockVector, lineage: Lineage | None
    ) -> bool:
        """Apply an update and keep it, if it is right. A holder of the lineage leads us to nothing but that."""
        after = state.apply(update, entry.tokens, self._terms.outer_at(state.step))
        if after != entry.digest_after or (lineage and state.step == lineage.step and after != lineage.digest):
            return False
        try:
            self._journal.append(entry, update)
        except OSError as error:  # others have it too
            logger.warning("the update of outer step %d is not in the journal: %s", state.step, error)
        return True

    def _undo(self, state: OuterState) -> Undo | None:
        try:
            return Undo(state, self._directory)
        except OSError as error:
            logger.warning("no copy of the state while it is led on: %s", error)
            return None

    def _go_back(self, undo: Undo | None, state: OuterState) -> None:
        wrong = f"the update of outer step {state.step} did not lead where it was said to"
        try:
            if undo is None:
                raise OSError("there was no room for a copy of the state before it")
            undo.go_back()
        except OSError as error:
            raise Diverged(f"{wrong}, and {error}; start this peer again in an empty folder") from None

    def _snapshot(self, lineage: Lineage, n: int, arrays: Arrays | None = None) -> OuterState | None:
        """A state of n parameters on the way to ``lineage``, near enough for a journal to lead on; None without one.

        It is made in ``arrays``, where some are given.
        """
        began = time.monotonic()
        try:
            reach = max(1, self._journal.length // 2)
            with self._watch("fetching a snapshot of the run", 8 * n) as advance:
                state = self._swarm.transfer(self._snapshots.fetch(lineage.digest, n, reach, arrays, advance))
        except (StreamError, FrameError, TransferError) as error:
            logger.info("no snapshot: %s", error)
            return None
        except OSError as error:
            logger.warning("no snapshot: %s", error)
            return None
        self._fetched += 1
        logger.info("took the state of outer step %d within %.1f s", state.step, time.monotonic() - began)
        return state
