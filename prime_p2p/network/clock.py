"""The swarm's time, which records expire by and heartbeats are dated in: unix seconds that all peers agree on.

A peer takes over the time of the peers it joins, however wrong its own clock is within `LIMIT`, and then runs by the
machine's steady clock: one that is set while the peer runs moves nothing. Every now and then it compares itself with
others and follows what most of them say, itself included; so one peer with a wrong time moves nobody, and two alone
keep what they have. The first peer of a swarm goes by its own clock.
"""

import logging
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from prime_p2p.errors import Unreachable

log = logging.getLogger(__name__)

LIMIT = 600.0  # seconds that are made up for. TLS of libp2p has a limit of its own, an hour, but does not say so.
NOTED = 1.0  # seconds from which on a difference is said
_BACKWARDS = 0.5  # seconds a second that time may be taken back, so that it never stands still: records get no older


@dataclass(frozen=True)
class Reading:
    """What another peer's time was, and ours just before we asked and just after it answered."""

    asked: float
    theirs: float
    answered: float

    @property
    def ahead(self) -> float:
        """By how much the other is ahead of us; 0 where the two may be the same, as its answer took a while."""
        if self.asked <= self.theirs <= self.answered:
            return 0.0
        return self.theirs - (self.asked + self.answered) / 2


class WrongClock(Unreachable):
    """This machine's clock is so many seconds ahead of the swarm's, or behind it, that it cannot join."""

    def __init__(self, ahead: float) -> None:
        super().__init__(
            f"the clock of this machine is {_words(ahead)} the swarm's, more than the {LIMIT:g} s that are made up "
            "for; set it, for example with NTP, and start again"
        )
        self.ahead = ahead


class SwarmClock:
    """The swarm's time as this process knows it."""

    def __init__(self) -> None:
        self._moved_at = _steady()
        self._base = time.time() - self._moved_at
        self._alone = True  # nobody has told us another time yet

    def now(self) -> float:
        return _steady() + self._base

    def adopt(self, readings: Sequence[Reading]) -> None:
        """Take over the time of the peers this one joins.

        Raises:
            WrongClock: it is too far from what this machine's clock says.
        """
        if not readings:
            return
        ahead = _middle([reading.ahead for reading in readings])
        wrong = time.time() - (self.now() + ahead)
        if abs(wrong) > LIMIT:
            raise WrongClock(wrong)
        if abs(ahead) > NOTED:
            log.warning("the clock of this machine is %s the swarm's; going by the swarm's", _words(wrong))
        self._alone = False
        self._move(ahead)

    def follow(self, readings: Sequence[Reading]) -> None:
        """Compare with other peers, and move to where most are: forwards at once, backwards slowly."""
        if not readings:
            if self._alone:
                self._base = time.time() - _steady()
            return
        self._alone = False
        ahead = _middle([0.0, *(reading.ahead for reading in readings)])
        if abs(ahead) > NOTED:
            log.warning("this peer is %s the others; going by their time", _words(-ahead))
        self._move(max(ahead, -_BACKWARDS * (_steady() - self._moved_at)))

    def _move(self, seconds: float) -> None:
        self._base += seconds
        self._moved_at = _steady()


def _steady() -> float:
    """A clock that nobody sets, and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _middle(values: list[float]) -> float:
    """The median; of the two in the middle the one that changes less."""
    return min(statistics.median_low(values), statistics.median_high(values), key=abs)


def _words(seconds: float) -> str:
    return f"{abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'}"


def reading(asked: float, theirs: float, answered: float) -> Reading | None:
    """A reading from an answer of the network, or None where that has no time in it."""
    return Reading(asked, theirs, answered) if theirs > 0 and math.isfinite(theirs) else None


_clock = SwarmClock()
now = _clock.now
adopt = _clock.adopt
follow = _clock.follow
