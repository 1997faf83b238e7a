"""What is known of a run by somebody who watches it. Pure: it is told what was seen, and the time.

All times are seconds of the swarm's clock.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from prime_p2p.bulletin.messages import Missed, News, Now
from prime_p2p.monitor.metrics import RoundMetrics
from prime_p2p.monitor.report import PeerResult, rounds_of
from prime_p2p.network import dropped
from prime_p2p.swarm.membership import BEAT_LIVES, LEFT, Heartbeat

MOST_STEPS = 200  # outer steps that are kept of each peer
MOST_MEMBERS = 1_000_000  # of the groups of all outer steps that are kept, some 100 bytes each where nobody knows them
MOST_EVENTS = 500
EVENTS_AT_ONCE = 32  # of one peer; more of them are not told
EVENT_EVERY = 10.0  # seconds in which one more has room
MOST_PEERS = 1024  # that are there
MOST_GONE = 256  # peers that are remembered after they have gone
LOST = "lost"  # the state of a peer that has gone without a word; one that has left is LEFT
ODD_LOOKS = 2  # looks in a row that a peer must hold another state than the others before that is said


@dataclass(frozen=True)
class Event:
    """Something that happened. ``number`` counts them; ``kind`` is one of joined, left, lost, retried, missed, dropped,
    fetched, replayed, gave, fork and healed; ``peer`` is a peer id, or empty where it is of the run."""

    number: int
    at: float
    kind: str
    peer: str
    text: str


@dataclass
class PeerView:
    """One peer. ``state`` is what it does, "left" or "lost"; ``seen_at`` when it last said something; ``odd`` whether
    it holds another state than most others at its outer step."""

    peer_id: str
    beat: Heartbeat
    state: str
    since: float
    """When ``state`` began."""
    seen_at: float
    heard_at: float = 0.0
    """When it last told its news, 0 where it never did."""
    now: Now | None = None
    steps: dict[int, RoundMetrics] = field(default_factory=dict)
    odd: bool = False
    odd_looks: int = 0
    first_step: int = 0
    """The outer step it was at when it was first seen: what it tells of earlier ones is no event."""
    members: int = 0
    """Of the groups of all its ``steps``."""
    tokens: int = 0
    """That it contributed to outer steps while we watched, or before as far as it told."""
    events_left: float = EVENTS_AT_ONCE
    """How many events of it have room at ``events_at``."""
    events_at: float = 0.0

    @property
    def name(self) -> str:
        """What to call it: the name it gave itself, or the end of its id."""
        return self.beat.name or f"…{self.peer_id[-8:]}"

    @property
    def gone(self) -> bool:
        return self.state in (LEFT, LOST)

    @property
    def outer_step(self) -> int:
        return max(self.beat.step, self.now.outer_step if self.now else 0, max(self.steps, default=0))

    @property
    def last(self) -> RoundMetrics | None:
        """Its newest outer step that is known."""
        return self.steps[max(self.steps)] if self.steps else None

    @property
    def loss(self) -> float | None:
        """That of its last inner step, or else the mean of its last outer step."""
        if self.now is not None and self.now.loss is not None:
            return self.now.loss
        return self.last.train_loss if self.last else None

    @property
    def tokens_per_second(self) -> float:
        return self.now.tokens_per_second if self.now and not self.gone else 0.0

    @property
    def rates(self) -> tuple[float, float]:
        """Bytes a second, sent and received, over its last outer step."""
        last = self.last
        if last is None or self.gone or last.seconds.total <= 0:
            return 0.0, 0.0
        return last.bytes_sent / last.seconds.total, last.bytes_received / last.seconds.total

    def has_room_for_an_event(self, now: float) -> bool:
        """Whether there may be one more, which then counts."""
        passed = max(0.0, now - self.events_at)
        self.events_left = min(EVENTS_AT_ONCE, self.events_left + passed / EVENT_EVERY)
        self.events_at = now
        if self.events_left < 1:
            return False
        self.events_left -= 1
        return True


class RunView:
    """A run, as far as it is known. ``version`` goes up with every change."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.peers: dict[str, PeerView] = {}
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self.version = 0
        self.looked_at = 0.0
        """When the heartbeats were last looked at, 0 where they never were."""
        self._rounds: dict[int, dict[str, Any]] = {}
        self._validation: dict[int, float] = {}
        self._stale: set[int] = set()  # outer steps of which more is known than these two say
        self._told = 0
        self._members = 0  # of all peers
        self.outer_step = 0
        """Where the run is, as far as more than one of the peers there say so; where nobody is, where it was."""
        self.tokens = 0
        """Contributed to the run, in the same way."""

    @property
    def name(self) -> str:
        """The name of the run, without its author."""
        return self.run.partition("/")[0]

    @property
    def present(self) -> list[PeerView]:
        """The peers that are there, the furthest first."""
        there = (peer for peer in self.peers.values() if not peer.gone)
        return sorted(there, key=lambda peer: (-peer.outer_step, peer.peer_id))

    @property
    def loss(self) -> float | None:
        """The mean over the peers there, each of its last inner step."""
        known = [peer.loss for peer in self.present if peer.loss is not None]
        return fmean(known) if known else None

    @property
    def tokens_per_second(self) -> float:
        return sum(peer.tokens_per_second for peer in self.peers.values())

    @property
    def compute_share(self) -> float | None:
        """Share of the time that the peers there spent in inner steps, over their last outer steps."""
        last = [peer.last for peer in self.present if peer.last is not None]
        total = sum(one.seconds.total for one in last)
        return min(1.0, sum(one.seconds.inner for one in last) / total) if total > 0 else None

    # ---- what was seen

    def looked(self, beats: Mapping[str, Heartbeat], now: float) -> None:
        """The heartbeats of the run were looked at; those of peers that have left are among them."""
        first = self.looked_at == 0
        self.looked_at = now
        for peer_id, beat in beats.items():
            self._beat(peer_id, beat, now, first)
        for peer in self.peers.values():
            if not peer.gone and now - max(peer.seen_at, peer.beat.sent_at) > BEAT_LIVES:
                self._move(peer, LOST, now)
        self._see_where_it_is()
        self._mark_odd_ones(now)
        self._forget()
        self.version += 1

    def heard(self, peer_id: str, news: Sequence[News], now: float) -> None:
        """A peer told its news."""
        peer = self.peers.get(peer_id)
        if peer is None or peer.state == LEFT:
            return
        if peer.gone:
            self._tell(now, "joined", peer_id, f"{peer.name} is back")
        peer.seen_at = peer.heard_at = now
        for one in news:
            if isinstance(one, Now):
                peer.now = one
                self._move(peer, one.state.value, now)
            elif isinstance(one, RoundMetrics):
                self._step(peer, one, now)
            elif isinstance(one, Missed) and one.outer_step >= peer.first_step:
                self._tell(now, "missed", peer_id, f"{peer.name} missed a round at outer step {one.outer_step}")
        self._see_where_it_is()
        self.version += 1

    def silent(self, peer_id: str, now: float) -> None:
        """A peer broke off the stream of its news, and cannot be reached any more."""
        peer = self.peers.get(peer_id)
        if peer is not None and not peer.gone:
            self._move(peer, LOST, now)
            self.version += 1

    # ---- what follows from it

    def ended(self, now: float) -> bool:
        """Whether the run is over as far as can be seen: nobody is there, and the last has left in good order, and not
        only a moment ago."""
        last = max(self.peers.values(), key=lambda peer: peer.since, default=None)
        return last is not None and not self.present and last.state == LEFT and now - last.since > BEAT_LIVES

    def rounds(self) -> list[dict[str, Any]]:
        """An entry for each outer step that is known, see ``report.rounds_of``."""
        self._look_at_stale_steps()
        return [self._rounds[step] for step in sorted(self._rounds) if step <= self.outer_step + 1]

    def validation(self) -> list[tuple[int, float]]:
        """The validation loss at each outer step where one is known."""
        self._look_at_stale_steps()
        return sorted((step, loss) for step, loss in self._validation.items() if step <= self.outer_step + 1)

    def _look_at_stale_steps(self) -> None:
        for step in self._stale:
            self._rounds.pop(step, None)
            self._validation.pop(step, None)
            made = [_result(peer, [peer.steps[step]]) for peer in self.peers.values() if step in peer.steps]
            for entry in rounds_of(made):
                self._rounds[step] = entry
            for one in made:
                if (loss := one.metrics[0].val_loss) is not None:
                    self._validation[step] = loss
        self._stale.clear()

    # ---- within

    def _beat(self, peer_id: str, beat: Heartbeat, now: float, first: bool) -> None:
        peer = self.peers.get(peer_id)
        left = beat.state == LEFT
        if peer is None:
            if left or beat.sent_at < now - BEAT_LIVES:
                return
            if len(self.peers) >= MOST_PEERS + MOST_GONE:
                dropped.note("heartbeat", f"more than {MOST_PEERS} peers are not watched", peer_id)
                return
            self.peers[peer_id] = peer = PeerView(peer_id, beat, beat.state, now, beat.sent_at, first_step=beat.step)
            self._tell(now, "joined", peer_id, f"{peer.name} {'is there' if first else 'joined'}")
            return
        if beat.sent_at <= peer.beat.sent_at:
            return
        if left:  # its last heartbeat says nothing else
            self._move(peer, LEFT, now)
            return
        peer.beat, peer.seen_at = beat, max(peer.seen_at, beat.sent_at)
        if peer.gone and beat.sent_at <= peer.since:
            return  # its last word from before
        if peer.gone:
            self._move(peer, beat.state, now)
            self._tell(now, "joined", peer_id, f"{peer.name} is back")
        elif now - peer.heard_at > BEAT_LIVES:
            self._move(peer, beat.state, now)

    def _move(self, peer: PeerView, state: str, now: float) -> None:
        if peer.state == state:
            return
        peer.state, peer.since = state, now
        if state == LEFT:
            self._tell(now, "left", peer.peer_id, f"{peer.name} left at outer step {peer.outer_step}")
        elif state == LOST:
            self._tell(
                now, "lost", peer.peer_id, f"{peer.name} is gone without a word, at outer step {peer.outer_step}"
            )

    def _step(self, peer: PeerView, made: RoundMetrics, now: float) -> None:
        made = replace(made, group=tuple(sys.intern(one) for one in made.group))
        if made.outer_step in peer.steps:
            self._drop_step(peer, made.outer_step)
        else:
            peer.tokens += made.tokens
        peer.steps[made.outer_step] = made
        peer.members += len(made.group)
        self._members += len(made.group)
        self._stale.add(made.outer_step)
        while len(peer.steps) > MOST_STEPS:
            self._drop_step(peer, min(peer.steps))
        while self._members > MOST_MEMBERS:
            loudest = max(self.peers.values(), key=lambda one: one.members)
            self._drop_step(loudest, min(loudest.steps))
        if made.outer_step <= peer.first_step:
            return
        where = f"outer step {made.outer_step}"
        if made.attempts > 1:
            self._tell(now, "retried", peer.peer_id, f"{peer.name} made {where} at attempt {made.attempts}")
        if made.snapshots:
            size = made.state_bytes / 1e6
            self._tell(now, "fetched", peer.peer_id, f"{peer.name} fetched a snapshot, {size:,.1f} MB, before {where}")
        if made.replayed:
            updates = f"{made.replayed} update{'' if made.replayed == 1 else 's'}"
            self._tell(now, "replayed", peer.peer_id, f"{peer.name} replayed {updates} before {where}")
        if made.given_snapshots:
            size = made.given_bytes / 1e6
            self._tell(
                now, "gave", peer.peer_id, f"{peer.name} gave others {size:,.1f} MB of a snapshot before {where}"
            )
        for kind, count in made.dropped.items():
            self._tell(now, "dropped", peer.peer_id, f"{peer.name} dropped {count} of kind {kind} before {where}")

    def _drop_step(self, peer: PeerView, step: int) -> None:
        size = len(peer.steps.pop(step).group)
        peer.members -= size
        self._members -= size
        self._stale.add(step)

    def _see_where_it_is(self) -> None:
        if there := self.present:
            self.outer_step = _said(peer.outer_step for peer in there)
            self.tokens = _said(peer.beat.tokens for peer in there)

    def _mark_odd_ones(self, now: float) -> None:
        held: dict[int, Counter[bytes]] = {}
        there = [peer for peer in self.present if peer.beat.has_state]
        for peer in there:
            held.setdefault(peer.beat.step, Counter())[peer.beat.digest] += 1
        healed = False
        for peer in self.peers.values():
            peer.odd &= not peer.gone
        for peer in there:
            counts = held[peer.beat.step]
            if counts.total() == 1:
                continue  # nobody to compare it with: what was seen before holds
            usual, holders = counts.most_common(1)[0]
            most = 2 * holders > counts.total()
            same = len(counts) == 1 or (most and peer.beat.digest == usual)
            peer.odd_looks = 0 if same else peer.odd_looks + 1
            before, peer.odd = peer.odd, peer.odd_looks >= ODD_LOOKS
            healed |= before and same
            if peer.odd and not before:
                others = "most" if most else "others"
                text = f"{peer.name} holds another state than {others} at outer step {peer.beat.step}"
                self._tell(now, "fork", peer.peer_id, text)
        fork = any(peer.odd for peer in there)
        if healed and not fork:
            self._tell(now, "healed", "", "all peers that can be compared hold one state again")

    def _forget(self) -> None:
        gone = sorted((peer for peer in self.peers.values() if peer.gone), key=lambda peer: -peer.since)
        for peer in gone[MOST_GONE:]:
            for step in list(peer.steps):
                self._drop_step(peer, step)
            del self.peers[peer.peer_id]

    def _tell(self, now: float, kind: str, peer: str, text: str) -> None:
        """Note an event, unless it is one too many of its peer: nobody drives out what others did."""
        about = self.peers.get(peer)
        if about is not None and not about.has_room_for_an_event(now):
            return
        self._told += 1
        self.events.append(Event(self._told, now, kind, peer, text))
        self.version += 1


def _result(peer: PeerView, steps: Iterable[RoundMetrics]) -> PeerResult:
    return PeerResult(peer.peer_id, peer.peer_id, not peer.gone, peer.state, tuple(steps))


def _said(values: Iterable[int]) -> int:
    """The largest of what peers say of the run; of three and more the second largest, so that a single one that errs,
    or lies, moves nothing."""
    largest = sorted(values, reverse=True)[:3]
    return largest[1] if len(largest) > 2 else max(largest, default=0)


def newer(events: Iterable[Event], number: int) -> list[Event]:
    """The events after the one with this number."""
    return [event for event in events if event.number > number]
