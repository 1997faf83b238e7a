"""A network that exists only as events in simulated time: links, and all that can happen to them and to their ends.

Links are reliable and in order, as streams are: what is sent arrives after a random delay, or the link breaks and both
ends are told. A frozen end is lost to the others when it has been silent for the stall timeout, and finds its mail when
it thaws. A crashed one is lost at once, or after the same silence.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prime_p2p.network.frames import Message
from prime_p2p.swarm import events as ev
from prime_p2p.swarm import messages as say

Span = tuple[float, float]


class Timeline:
    """Simulated time: what is to happen, in order. Everything random is drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._seed = seed
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._order = itertools.count()

    def at(self, time: float, act: Callable[..., Any], *arguments: Any) -> None:
        heapq.heappush(self._queue, (max(time, self.now), next(self._order), act, arguments))

    def after(self, seconds: float, act: Callable[..., Any], *arguments: Any) -> None:
        self.at(self.now + seconds, act, *arguments)

    def draw(self, span: Span) -> float:
        return self.random.uniform(*span)

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Go on for so long, or until something holds."""
        end = self.now + seconds
        try:
            while self._queue[0][0] <= end and not until():
                self.now, _, act, arguments = heapq.heappop(self._queue)
                act(*arguments)
        except BaseException:
            print(f"the schedule of seed {self._seed} failed at {self.now:.3f} s of simulated time")
            raise


class End:
    """One end of the links: something that takes events, unless it is frozen or dead."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.died_at = math.inf
        self.thaws_at: float | None = None
        self.mail: list[Callable[[], None]] = []
        self.lost: set[str] = set()  # the ends that we were told are lost and have not heard of since

    @property
    def alive(self) -> bool:
        return self.died_at == math.inf

    @property
    def up(self) -> bool:
        return self.died_at == math.inf and self.thaws_at is None

    def when_up(self, act: Callable[[], None]) -> None:
        """Do something now, or when we thaw."""
        if self.up:
            act()
        elif self.alive:
            self.mail.append(act)

    def take(self, event: ev.Event) -> None:
        raise NotImplementedError


@dataclass
class Link:
    """One direction between two ends."""

    delay: float
    up: bool = True
    breaks: int = 0  # so far: what was on its way at a break is gone
    last: float = 0.0  # arrival of the latest message


class Network:
    """The links between all ends. ``stall`` is the silence after which an end is lost, found out with a ping every
    quarter of it. ``on_lost(lost, by)`` is called when one end is told that another is lost."""

    def __init__(self, time: Timeline, stall: float, delay: Span, on_lost: Callable[[str, str], None]) -> None:
        self.ends: dict[str, End] = {}
        self._time = time
        self._stall = stall
        self._delay = delay
        self._on_lost = on_lost
        self._links: dict[tuple[str, str], Link] = {}
        self._apart: dict[frozenset[str], list[list[float]]] = {}  # spans in which two ends could not reach each other

    def link(self, sender: str, to: str) -> Link:
        if (sender, to) not in self._links:
            self._links[sender, to] = Link(self._time.draw(self._delay))
        return self._links[sender, to]

    def others(self, name: str) -> list[str]:
        return [other for other in self.ends if other != name]

    def reaches(self, one: str, other: str) -> bool:
        return self.ends[other].up and self.link(one, other).up

    def apart(self, one: str, other: str, start: float, end: float) -> bool:
        """Whether there was a moment between two times when two ends could not reach each other."""
        return any(since <= end and until >= start for since, until in self._apart.get(frozenset((one, other)), ()))

    def send(self, sender: str, to: str, message: Message) -> None:
        link = self.link(sender, to)
        if not (link.up and self.ends[to].alive):
            self._time.after(link.delay, self._lose, to, sender)
            return
        link.last = max(link.last, self._time.now + link.delay * self._time.random.uniform(0.5, 1.5))
        self._time.at(link.last, self._arrive, link, link.breaks, sender, to, message)

    def _arrive(self, link: Link, breaks: int, sender: str, to: str, message: Message) -> None:
        if link.breaks == breaks:
            self.ends[to].when_up(lambda: self._find(sender, to))
            self.ends[to].take(ev.Received(sender, message))

    def _find(self, sender: str, to: str) -> None:
        if sender in self.ends[to].lost:
            self.ends[to].lost.discard(sender)
            self._note(sender, to)

    def _lose(self, lost: str, by: str) -> None:
        self.ends[by].lost.add(lost)
        self._note(lost, by)
        self.ends[by].take(ev.PeerLost(lost))
        self._on_lost(lost, by)

    def _note(self, one: str, other: str) -> None:
        """Keep the book of when two ends could not reach each other."""
        ends = self.ends[one], self.ends[other]
        lost = one in ends[1].lost or other in ends[0].lost
        apart = lost or not (ends[0].up and ends[1].up and self.link(one, other).up)
        spans = self._apart.setdefault(frozenset((one, other)), [])
        if apart and not (spans and spans[-1][1] == math.inf):
            spans.append([self._time.now, math.inf])
        elif not apart and spans:
            spans[-1][1] = min(spans[-1][1], self._time.now)

    def _silence(self) -> float:
        """How long it takes to notice that an end is silent."""
        return self._stall * self._time.random.uniform(1.0, 1.25)

    # ---- what can happen

    def crash(self, name: str, silent: bool = False) -> None:
        """An end is gone: its connections are reset, or (``silent``) nothing is heard of it any more."""
        self.ends[name].died_at = self._time.now
        for other in self.others(name):
            self._note(name, other)
            link = self.link(name, other)
            if self._time.random.random() < 0.5:
                link.breaks += 1  # what it had just said is gone too
            noticed = self._silence() if silent else link.delay
            self._time.at(max(self._time.now, link.last) + noticed, self._lose, name, other)

    def freeze(self, name: str, seconds: float) -> None:
        """An end does nothing for a while, then finds its mail."""
        end = self.ends[name]
        end.thaws_at = thaws_at = self._time.now + seconds
        for other in self.others(name):
            self._note(name, other)
            self._time.after(self._silence(), self._lose_frozen, name, other, thaws_at)
        self._time.after(seconds, self._thaw, end)

    def _lose_frozen(self, name: str, other: str, thaws_at: float) -> None:
        if self.ends[name].thaws_at == thaws_at:
            self._lose(name, other)

    def _thaw(self, end: End) -> None:
        if not end.alive:
            return
        end.thaws_at = None
        mail, end.mail = end.mail, []
        lost_by = [other for other in self.others(end.name) if end.name in self.ends[other].lost]
        first = self._time.random.random() < 0.5
        if first:
            self._lose_all(lost_by, end.name)
        for act in mail:
            end.when_up(act)
        if not first:
            self._lose_all(lost_by, end.name)
        for other in self.others(end.name):
            self._note(end.name, other)
            self._meet_again(end.name, other)

    def _lose_all(self, lost: list[str], by: str) -> None:
        for name in lost:
            self._lose(name, by)

    def cut(self, one: str, other: str) -> None:
        """Two ends cannot reach each other any more."""
        silent = self._time.random.random() < 0.5
        for sender, to in ((one, other), (other, one)):
            link = self.link(sender, to)
            link.up = False
            link.breaks += 1
            self._note(one, other)
            self._time.after(self._silence() if silent else link.delay, self._lose_cut, link, link.breaks, sender, to)

    def _lose_cut(self, link: Link, breaks: int, sender: str, to: str) -> None:
        if link.breaks == breaks:
            self._lose(sender, to)

    def heal(self, one: str, other: str) -> None:
        """Two ends can reach each other again; each had lost the other, noticed or not."""
        for sender, to in ((one, other), (other, one)):
            link = self.link(sender, to)
            if not link.up:
                link.up = True
                link.breaks += 1
                self._lose(sender, to)
        self._meet_again(one, other)

    def _meet_again(self, one: str, other: str) -> None:
        for sender, to in ((one, other), (other, one)):
            self._time.after(self._stall * self._time.random.uniform(0.0, 0.25), self._ping, sender, to)

    def _ping(self, sender: str, to: str) -> None:
        if self.ends[sender].up and self.reaches(sender, to):
            self.send(sender, to, say.Ping())
