"""Watches over the peers of a local swarm: hears their events, shows them, and lets nobody wait for ever."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from prime_p2p.lifetime import STOP_PATIENCE, StopSignals
from prime_p2p.local_swarm.children import Child, wait_for_output
from prime_p2p.monitor.console import SwarmConsole
from prime_p2p.monitor.events import Done, EventReader, Ready
from prime_p2p.monitor.view import SwarmView

_TICK = 0.2  # seconds between two looks at the processes and the clock
_ASKED = "stopped"  # why a peer left that we told to, because somebody told us to


@dataclass(frozen=True)
class Limits:
    """How long a swarm waits, in seconds.

    Attributes:
        start: For a process to give its first sign of life; more where many peers share a core.
        silence: Without an event of any peer.
        straggler: The same, once a peer has finished.
        stop: For a process that was told to leave, or that said it was done.
    """

    start: float = 60.0
    silence: float = 120.0
    straggler: float = 30.0
    stop: float = STOP_PATIENCE


class PeerProcess:
    """One peer as its supervisor knows it."""

    def __init__(self, child: Child, now: float) -> None:
        self.child = child
        self.peer_id = ""
        self.done: Done | None = None
        self.ending = "still running"  # in words, once it has ended
        self.finished = False  # all outer steps made
        self.settled = False  # its end was noticed, here and not just by whoever meant to stop it
        self.reader = EventReader()
        self.heard: float | None = None  # when the last event came
        self.started = now
        self.stopped_for: str | None = None
        self.kill_at: float | None = None

    @property
    def name(self) -> str:
        return self.child.name

    def silent_for(self, now: float) -> float:
        """Seconds since its last event; 0 before the first one, for which there is a limit of its own."""
        return 0.0 if self.heard is None else now - self.heard


class Supervisor:
    """Runs until every peer has ended. The children belong to the caller, who closes them."""

    def __init__(
        self, peers: Sequence[Child], bootstrap: Child, view: SwarmView, console: SwarmConsole, limits: Limits
    ) -> None:
        now = time.monotonic()
        self.peers = [PeerProcess(child, now) for child in peers]
        self.events: list[str] = []  # what went wrong, a line each
        self._bootstrap = bootstrap
        self._view = view
        self._console = console
        self._limits = limits

    def run(self, signals: StopSignals) -> None:
        """Hear and watch the peers until all have ended; ``signals`` make them leave early."""
        while watched := [peer for peer in self.peers if not peer.settled]:
            wait_for_output([peer.child for peer in watched], _TICK)
            now = time.monotonic()
            for peer in watched:
                ended = peer.child.check()  # before the last events are read, so that none is missed
                self._hear(peer, now)
                if ended:
                    self._settle(peer, now)
            self._watch_bootstrap(now)
            self._obey(signals, now)
            self._enforce_limits(now)
            self._console.refresh(now)

    def _hear(self, peer: PeerProcess, now: float) -> None:
        for event in peer.reader.feed(peer.child.read()):
            peer.heard = now
            if isinstance(event, Ready):
                peer.peer_id = event.peer_id
            elif isinstance(event, Done):
                peer.done = event
                peer.kill_at = now + self._limits.stop
            self._console.tell(self._view.apply(peer.name, event, now), now)

    def _settle(self, peer: PeerProcess, now: float) -> None:
        """A peer has ended: say how."""
        peer.settled = True
        peer.finished = peer.done is not None and peer.done.outer_step >= self._view.goal
        how = peer.stopped_for or peer.child.ending()
        said = peer.child.last_words()
        if peer.finished:
            peer.ending = "finished" if peer.child.exit_code == 0 else f"finished, then {how}"
            return
        peer.ending = how
        if peer.stopped_for == _ASKED:
            self._view.leave(peer.name)
            return
        lines = self._view.lose(peer.name, f"{how}: {said}" if said and peer.stopped_for is None else how)
        self.events.append(lines[0])
        self._console.tell(lines, now)

    def _watch_bootstrap(self, now: float) -> None:
        if self._bootstrap.alive and self._bootstrap.check():
            line = f"the bootstrap node ended ({self._bootstrap.ending()}); the peers go on without it"
            self.events.append(line)
            self._console.tell([line], now)

    def _obey(self, signals: StopSignals, now: float) -> None:
        if signals.first is not None:
            for peer in self.peers:
                self._stop(peer, _ASKED, now)
        if signals.insistent:
            for peer in self.peers:
                peer.child.kill()

    def _enforce_limits(self, now: float) -> None:
        for peer in self.peers:
            if peer.heard is None and now - peer.started > self._limits.start:
                self._stop(peer, f"gave no sign of life within {self._limits.start:.0f} s", now)
            if peer.kill_at is not None and now > peer.kill_at:
                peer.child.kill()
        limit = self._limits.straggler if any(peer.done for peer in self.peers) else self._limits.silence
        waiting = [peer for peer in self.peers if peer.child.alive and peer.done is None]
        if waiting and all(peer.silent_for(now) > limit for peer in waiting):
            for peer in waiting:
                self._stop(peer, f"stuck: no event for {limit:.0f} s", now)

    def _stop(self, peer: PeerProcess, reason: str, now: float) -> None:
        """Tell a peer to leave, once, and set the time at which it is killed."""
        if peer.child.alive and peer.stopped_for is None:
            peer.stopped_for = reason
            peer.kill_at = now + self._limits.stop
            peer.child.terminate()
