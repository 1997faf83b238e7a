"""A simulated swarm: round machines, and training, all-reduces and a network that exist only as events."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from blake3 import blake3
from simulated_network import End, Network, Span, Timeline

from prime_p2p.swarm import events as ev
from prime_p2p.swarm.certificate import Certificate, ballot
from prime_p2p.swarm.gathering import RoundPolicy, Seen
from prime_p2p.swarm.groups import Group, rank
from prime_p2p.swarm.rounds import RoundMachine

State = tuple[int, bytes]
FIRST: State = (0, bytes(32))

SEEDS = int(os.environ.get("ROUND_SEEDS", "40"))
"""How many schedules the properties of random runs are checked over."""


@dataclass(frozen=True)
class Conditions:
    """How the simulated world behaves; spans are drawn from uniformly, times are in seconds."""

    policy: RoundPolicy = field(default_factory=RoundPolicy)
    delay: Span = (0.005, 0.1)
    training: Span = (4.0, 8.0)
    hurried: Span = (0.1, 1.0)  # from being told to hurry until ready
    reduce: Span = (1.0, 4.0)
    reduce_spread: float = 0.5  # between the first to complete and the last
    apply: Span = (0.05, 0.5)
    look_every: Span = (1.0, 3.0)
    view_age: float = 3.0  # how old a view may be
    view_gaps: float = 0.0  # how likely a peer is missing in a view
    record_life: float = 15.0  # how long a dead peer is still seen
    unfit: float = 0.0  # how likely a pseudo-gradient is not fit to be sent


@dataclass(frozen=True)
class CommitRecord:
    """A commit of one peer. It came to the state before at ``since`` and was ready at ``ready_at``."""

    at: float
    peer: str
    before: State
    after: State
    group: Group
    attempts: int
    since: float
    ready_at: float
    certificate: Certificate


def signature(name: str, group_id: bytes, update_digest: bytes) -> bytes:
    """What stands for the signature of a peer under its vote."""
    return blake3(name.encode() + ballot(group_id, update_digest)).digest(64)


class Peer(End):
    """A machine, and a trainer that does as ``diloco`` does: it trains, moves to the best state it can see, makes a
    round, and applies or trains on."""

    def __init__(self, world: World, name: str, state: State) -> None:
        super().__init__(name)
        self.world = world
        self.machine = RoundMachine("run", name, world.conditions.policy, first_nonce=world.actions)
        self.state = state
        self.tokens = 0
        self.expected = True
        self.acquaintances: set[str] | None = None  # None: everybody
        self.view: dict[str, Seen] = {}
        self.history: list[tuple[float, Seen]] = []
        self.since = world.time.now
        self.ready_since: float | None = None
        self.missed: list[str] = []
        self.sat_out: list[float] = []  # when
        self._timer = 0
        self._training = 0
        self._second_try = False
        self._hold(state)

    # ---- events in, actions out

    def take(self, event: ev.Event) -> None:
        self.when_up(lambda: self._take(event))

    def _take(self, event: ev.Event) -> None:
        time = self.world.time
        for action in self.machine.handle(event, time.now):
            self.when_up(lambda action=action: self._act(action))  # a fault may come between two actions
        self._timer += 1
        time.at(self.machine.wake_at(time.now), self.when_up, lambda timer=self._timer: self._wake(timer))

    def _wake(self, timer: int) -> None:
        if timer == self._timer:
            self._take(ev.Woken())

    def _act(self, action: ev.Action) -> None:
        self._do(action)
        self.world.actions += 1
        self.world.after_action(self, action)

    def _do(self, action: ev.Action) -> None:
        world = self.world
        if isinstance(action, ev.Send):
            world.network.send(self.name, action.to, action.message)
        elif isinstance(action, ev.StartReduce):
            world.reduces.start(self.name, action.group)
        elif isinstance(action, ev.StopReduce):
            world.reduces.stop(self.name, action.group_id)
        elif isinstance(action, ev.HurryUp):
            self._train_for(world.time.draw(world.conditions.hurried))
        elif isinstance(action, ev.Commit):
            world.committed(self, action, self._end_round())
            self._later(world.conditions.apply, lambda: self._applied(action.group))
        elif isinstance(action, ev.Missed):
            self._end_round()
            self.missed.append(action.reason)
            self._later(world.conditions.apply, self._after_miss)

    def _later(self, span: Span, act: Callable[[], None]) -> None:
        self.world.time.after(self.world.time.draw(span), self.when_up, act)

    def _end_round(self) -> float:
        assert self.ready_since is not None, f"{self.name} ended a round that it was not in"
        ready_since, self.ready_since = self.ready_since, None
        return ready_since

    # ---- training

    def _hold(self, state: State) -> None:
        self.state = state
        self.since = self.world.time.now
        self._take(ev.StateChanged(*state, self.world.tokens[state]))

    def train(self) -> None:
        self._second_try = True
        self._train_for(self.world.time.draw(self.world.conditions.training))
        self._publish()

    def _train_for(self, seconds: float) -> None:
        self._training += 1
        self.ready_at = self.world.time.now + seconds
        self.world.time.at(self.ready_at, self.when_up, lambda training=self._training: self._boundary(training))

    def _publish(self) -> None:
        tokens = self.world.tokens[self.state]
        seen = Seen(self.name, *self.state, self.expected, self.ready_at, tokens)
        self.history.append((self.world.time.now, seen))
        del self.history[:-8]

    def _boundary(self, training: int) -> None:
        if training == self._training and self.ready_since is None:
            self._training += 1
            self.tokens += self.world.time.random.randrange(1000, 2000)
            self._catch_up()
            if self.world.conditions.unfit and self.world.time.random.random() < self.world.conditions.unfit:
                self._sit_out()
            else:
                self._be_ready()

    def _sit_out(self) -> None:
        self.tokens = 0
        self.expected = False
        self.sat_out.append(self.world.time.now)
        self._take(ev.SitsOut())
        self.train()

    def _be_ready(self) -> None:
        self.ready_since = self.world.time.now
        self._take(ev.Ready(self.tokens, 100.0))

    def _catch_up(self) -> bool:
        """Move to the best state of those that are seen and can be reached."""
        holders = [peer for name, peer in self.world.peers.items() if name in self.view]
        states = [peer.state for peer in holders if self.world.network.reaches(self.name, peer.name)]
        best = max([self.state, *states], key=self.world.rank)
        if best == self.state:
            return False
        self._hold(best)
        self._publish()
        return True

    def _applied(self, group: Group) -> None:
        self.tokens = 0
        self.expected = True
        self._hold(self.world.state_after(group))
        self.train()

    def _after_miss(self) -> None:
        if self._catch_up() and self._second_try:
            self._second_try = False
            self._be_ready()
        else:
            self.train()


@dataclass
class Reduce:
    """One group's all-reduce."""

    group: Group
    running: set[str] = field(default_factory=set)
    started: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)


class Reduces:
    """All-reduces that take their time, and fail with blame when a member is lost, stops, or never comes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._reduces: dict[bytes, Reduce] = {}

    def start(self, name: str, group: Group) -> None:
        time, conditions = self._world.time, self._world.conditions
        reduce = self._reduces.setdefault(group.id, Reduce(group))
        reduce.running.add(name)
        reduce.started.add(name)
        if reduce.started == set(group.peer_ids):
            seconds = time.draw(conditions.reduce)
            for member in group.peer_ids:
                spread = time.random.uniform(0.0, conditions.reduce_spread)
                time.after(seconds + spread, self._finish, reduce, member)
        time.after(conditions.policy.stall_timeout, self._blame_absent, reduce, name)

    def stop(self, name: str, group_id: bytes) -> None:
        reduce = self._reduces[group_id]
        reduce.running.discard(name)
        if name not in reduce.done:
            self._end_streams(reduce, name)

    def lose(self, lost: str, by: str) -> None:
        for reduce in list(self._reduces.values()):
            if {lost, by} <= reduce.started and lost not in reduce.done:
                self._fail(reduce, by, lost)

    def _blame_absent(self, reduce: Reduce, name: str) -> None:
        absent = set(reduce.group.peer_ids) - reduce.started
        if absent:
            self._fail(reduce, name, min(absent))

    def _finish(self, reduce: Reduce, name: str) -> None:
        peers = [self._world.peers[member] for member in reduce.group.peer_ids if member != name]
        down = [peer for peer in peers if not peer.up and peer.name not in reduce.done]
        if name not in reduce.running or any(not peer.alive for peer in down):
            return
        if down:
            self._world.time.after(0.5, self._finish, reduce, name)
            return
        reduce.running.discard(name)
        reduce.done.add(name)
        update = blake3(reduce.group.id).digest()
        self._world.peers[name].take(ev.ReduceDone(reduce.group.id, update, signature(name, reduce.group.id, update)))

    def _fail(self, reduce: Reduce, name: str, blamed: str) -> None:
        if name in reduce.running:
            reduce.running.discard(name)
            self._world.peers[name].take(ev.ReduceFailed(reduce.group.id, frozenset((blamed,))))
            self._end_streams(reduce, name)

    def _end_streams(self, reduce: Reduce, name: str) -> None:
        """The others' data streams to this member end, which looks to them as if it had failed."""
        for other in reduce.group.peer_ids:
            if other != name:
                self._world.time.after(self._world.network.link(name, other).delay, self._fail, reduce, other, name)


class World:
    """Everybody in the swarm, and what surrounds them."""

    def __init__(self, seed: int, conditions: Conditions | None = None) -> None:
        self.conditions = conditions or Conditions()
        self.time = Timeline(seed)
        self.reduces = Reduces(self)
        self.network = Network(
            self.time, self.conditions.policy.stall_timeout, self.conditions.delay, on_lost=self.reduces.lose
        )
        self.peers: dict[str, Peer] = {}
        self.commits: list[CommitRecord] = []
        self.tokens: dict[State, int] = {FIRST: 0}
        self.actions = 0  # done so far, by anybody
        self.after_action: Callable[[Peer, ev.Action], None] = lambda peer, action: None

    def add(self, name: str, state: State = FIRST, knows: Iterable[str] | None = None) -> Peer:
        """A new peer; one that joins a run under way is not expected, and may know only some of the others."""
        peer = Peer(self, name, state)
        peer.expected = state == FIRST
        peer.acquaintances = None if knows is None else set(knows)
        self.peers[name] = peer
        self.network.ends[name] = peer
        peer.train()
        self.time.after(0.0, self._look, peer, 0.0)  # the first look is a complete one
        return peer

    def _look(self, peer: Peer, gaps: float) -> None:
        if peer.alive:
            seen = {name: self._record(other) for name, other in self.peers.items() if self._knows(peer, other)}
            found = {name: record for name, record in seen.items() if self.time.random.random() >= gaps}
            peer.view = {name: record for name, record in found.items() if record is not None}
            peer.take(ev.PeersSeen(dict(peer.view)))
            self.time.after(self.time.draw(self.conditions.look_every), self._look, peer, self.conditions.view_gaps)

    def _knows(self, peer: Peer, other: Peer) -> bool:
        return peer is not other and (peer.acquaintances is None or other.name in peer.acquaintances)

    def _record(self, other: Peer) -> Seen | None:
        """What was last known of a peer at some recent time."""
        if other.died_at + self.conditions.record_life < self.time.now:
            return None
        then = max(0.0, self.time.now - self.time.random.uniform(0.0, self.conditions.view_age))
        return next((seen for at, seen in reversed(other.history) if at <= then), None)

    # ---- states

    def state_after(self, group: Group) -> State:
        state = group.step + 1, blake3(group.id).digest()
        self.tokens[state] = self.tokens[group.step, group.digest] + group.total_weight
        return state

    def rank(self, state: State) -> tuple[int, bytes]:
        """Larger is better: more tokens, then the smaller digest."""
        return rank(self.tokens[state], state[1])

    def committed(self, peer: Peer, commit: ev.Commit, ready_at: float) -> None:
        after = self.state_after(commit.group)
        record = CommitRecord(
            self.time.now,
            peer.name,
            peer.state,
            after,
            commit.group,
            commit.attempts,
            peer.since,
            ready_at,
            commit.certificate,
        )
        self.commits.append(record)

    def groups_by_state(self) -> dict[State, set[Group]]:
        groups: dict[State, set[Group]] = {}
        for commit in self.commits:
            groups.setdefault(commit.before, set()).add(commit.group)
        return groups

    def lineage(self, state: State) -> list[State]:
        """A state and all before it."""
        before = {commit.after: commit.before for commit in self.commits}
        lineage = [state]
        while lineage[-1] in before:
            lineage.append(before[lineage[-1]])
        return lineage


def names(count: int) -> list[str]:
    return [f"peer-{index:04}" for index in range(count)]


def swarm(seed: int, count: int, conditions: Conditions | None = None) -> World:
    """A world of so many peers, all at the first state."""
    world = World(seed, conditions)
    for name in names(count):
        world.add(name)
    return world
