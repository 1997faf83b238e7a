"""What a peer tells of itself: progress to whoever watches, and a line an outer step to its metrics file."""

from __future__ import annotations

import logging
import re

from prime_p2p.diloco import DiLoCo, OuterStep
from prime_p2p.long_work import Watch, unwatched
from prime_p2p.monitor import logs
from prime_p2p.monitor.events import Progress, State
from prime_p2p.monitor.metrics import MetricsLog, PhaseSeconds, RoundMetrics
from prime_p2p.monitor.reporter import Reporter
from prime_p2p.network import dropped
from prime_p2p.state import given
from prime_p2p.state.follow import CaughtUp

logger = logging.getLogger(__name__)

_STATES = {"voting": State.REDUCING, "uncertain": State.REDUCING}  # phases of a round that are one to a watcher


class News:
    """The news of one peer. ``phase`` is called in the network thread too, all else only where the peer trains."""

    def __init__(self, reporter: Reporter, metrics: MetricsLog, watch: Watch = unwatched) -> None:
        self.reporter = reporter
        self.watch = watch
        self._metrics = metrics
        self._bytes_sent = 0
        self._group_size = 0
        self._metrics_lost = False
        self._caught_up = CaughtUp()  # in rounds that were missed
        self._dropped, self._given = dropped.counts(), given.so_far()  # until the last outer step
        self._missed_for = ""  # why the last round was missed, without figures; empty where it was not

    def joined(self, diloco: DiLoCo) -> None:
        """This peer holds a state of the run."""
        logs.at(outer_step=diloco.state.step)
        logger.info("in the run; fetched %s", diloco.joined_by)
        step, way = diloco.state.step, diloco.joined_by
        fetched = f"; fetched {way}" if way.snapshots or way.updates else ""
        self.reporter.note(f"in the run at outer step {step}{fetched}" if step else "at the beginning of the run")

    def inner_step(self, diloco: DiLoCo, loss: float, tokens_per_second: float) -> None:
        """An inner step was made; ``diloco`` is told of it next."""
        self.reporter.progress(
            Progress(
                diloco.state.step,
                diloco.inner_step + 1,
                diloco.inner_steps,
                loss,
                tokens_per_second,
                self._group_size,
                self._bytes_sent,
                State.TRAINING,
            )
        )

    def phase(self, phase: str, group_size: int) -> None:
        """The round has entered a phase, or the peer waits, or goes on, in a run that its author pauses."""
        logger.debug("%s, group of %d", phase, group_size)
        self.reporter.phase(_STATES.get(phase) or State(phase), group_size)

    def missed(self, outcome: OuterStep) -> None:
        """There was no outer step for this peer, which may have moved to a later one all the same."""
        logs.at(outer_step=outcome.outer_step)
        logger.info("no outer step: %s", outcome.round.reason)
        self._bytes_sent += outcome.round.traffic.sent
        self._caught_up += outcome.caught_up
        self._group_size = 0
        self.reporter.missed()
        reason = re.sub(r"\d+", "", outcome.round.reason)
        if reason != self._missed_for:  # many rounds missed for one reason are one piece of news
            self.reporter.log(f"no outer step: {outcome.round.reason}; training on")
        self._missed_for = reason

    def outer_step(self, outcome: OuterStep, train_loss: float, val_loss: float | None) -> None:
        """An outer step was committed."""
        group = outcome.round.group
        assert group is not None
        logs.at(outer_step=outcome.outer_step)
        logger.info("outer step made by a group of %d, digest %s", len(group.members), outcome.digest.hex())
        self._bytes_sent += outcome.round.traffic.sent
        self._group_size = len(group.members)
        self._missed_for = ""
        caught_up, self._caught_up = self._caught_up + outcome.caught_up, CaughtUp()
        dropped_before, self._dropped = self._dropped, dropped.counts()
        given_before, self._given = self._given, given.so_far()
        gave = self._given - given_before
        line = RoundMetrics(
            outer_step=outcome.outer_step,
            digest=outcome.digest.hex(),
            group=group.peer_ids,
            weights=tuple(member.weight for member in group.members),
            attempts=outcome.round.attempts,
            train_loss=train_loss,
            tokens=outcome.tokens,
            bytes_sent=outcome.round.traffic.sent,
            bytes_received=outcome.round.traffic.received,
            seconds=PhaseSeconds(**outcome.seconds),
            val_loss=val_loss,
            replayed=caught_up.updates,
            snapshots=caught_up.snapshots,
            state_bytes=caught_up.bytes,
            given_snapshots=gave.snapshots,
            given_bytes=gave.bytes,
            dropped=dict(self._dropped - dropped_before),
        )
        self._write(line)
        self.reporter.outer_step(line)

    def _write(self, line: RoundMetrics) -> None:
        try:
            self._metrics.append(line)
        except OSError as error:  # a full disk is no reason to stop training
            if not self._metrics_lost:
                self.reporter.log(f"the metrics cannot be written: {error}; training on")
            self._metrics_lost = True
        else:
            self._metrics_lost = False
