"""Who is in the run: every peer keeps a signed heartbeat in the DHT, and reads those of the others.

The DHT announces, it does not decide: a heartbeat says which state a peer holds and when it expects to be ready, and
may be a few seconds old. What peers agree on, they agree on over their control streams.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Protocol

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from prime_p2p.errors import BadInput
from prime_p2p.network import clock, dropped, tasks
from prime_p2p.network.deadline import within
from prime_p2p.network.frames import one_line
from prime_p2p.network.node import Node
from prime_p2p.network.version import PROTOCOL
from prime_p2p.swarm.gathering import Seen
from prime_p2p.swarm.groups import rank
from prime_p2p.swarm.location import Location, checked
from prime_p2p.swarm.session import Session

logger = logging.getLogger(__name__)

RUN_ID = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}"  # the name of a run, or of a public one with its author
RUNS = "runs"  # key of the records that say which runs there are
FEW = 8  # with more others than these all that follows is as much rarer, see ``crowd``
COPIES = 2  # of the heartbeats that a look brings then; while there are few others it brings all there are
LOOK_EVERY = 1.5  # seconds between two looks at the others' heartbeats
LOOK_AGAIN = 0.25  # seconds between two looks while this peer has no network, to be in touch soon when it has
BEAT_EVERY = 3.0  # seconds between two heartbeats where nothing changes
BEAT_GAP = 0.25  # seconds at least between two heartbeats
BEAT_LIVES = 15.0  # seconds a heartbeat stays in the DHT
BEAT_AT_LEAST_EVERY = BEAT_LIVES / 3
RUN_EVERY = 20.0  # seconds between two records that say that there is this run
RUN_LIVES = 60.0  # seconds such a record stays
LEFT = "left"  # the state in the last heartbeat of a peer that has gone
DHT_DEADLINE = 10.0  # seconds one look-up or store may take
MOST_PEERS = 256  # others at most that a peer deals with: it keeps a stream to each
MOST_RUNS = 64  # that are listed for people to look at
AHEAD = 60.0  # seconds that a heartbeat may be ahead of our time

PRINTABLE = r"^[^\p{C}\p{Zl}\p{Zp}]*$"  # nothing that moves a terminal's cursor, changes its colours or hides itself
Time = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]


class Heartbeat(BaseModel):
    """What a peer says of itself. Everything but the peer id, which the record's signature proves."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    step: Annotated[int, Field(ge=0, lt=2**63)] = 0
    digest: Annotated[bytes, Field(max_length=32)] = b""
    tokens: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Tokens contributed to the whole lineage: the weight of the state."""
    description: Annotated[bytes, Field(max_length=32)] = b""
    """Hash of what all peers of the run must agree on."""
    state: Annotated[str, Field(max_length=16, pattern=PRINTABLE)] = "joining"
    expected: bool = False
    """Whether others should wait for this peer in the coming round."""
    ready_at: Time = 0.0
    """When the peer expects to have done its inner steps, on the swarm's clock, in unix seconds."""
    sent_at: Time = 0.0
    pace: Time = 0.0
    """Seconds that the peer's last outer step took, with its inner steps; 0 where there is none yet."""
    protocol: Annotated[int, Field(ge=0, lt=2**31)] = PROTOCOL
    manifest: Annotated[int, Field(ge=0, lt=2**53)] = 0
    """Sequence of the manifest that the peer goes by, where the run is a public one."""
    credential: Annotated[bytes, Field(max_length=256)] = b""
    """What lets the peer into a run that asks for an invitation."""
    session: Annotated[bytes, Field(max_length=16)] = b""
    """Tells two processes with one identity apart, see ``swarm.session``."""
    began: Time = 0.0
    """When the session began, on the swarm's clock."""
    name: Annotated[str, Field(max_length=64, pattern=PRINTABLE)] = ""
    addresses: Annotated[list[Annotated[str, Field(max_length=256, pattern=PRINTABLE)]], Field(max_length=8)] = []
    location: Annotated[Location, AfterValidator(checked)] | None = None
    """Where the peer chose to be shown, None where it tells nobody."""

    def record(self) -> dict[str, Any]:
        """The fields as they are kept in the DHT: a location that is not told takes no room there."""
        return self.model_dump(exclude_none=True)

    @property
    def has_state(self) -> bool:
        return len(self.digest) == 32

    @property
    def rank(self) -> tuple[int, bytes]:
        """Of two lineages the one with the larger goes on, see ``groups.rank``."""
        return rank(self.tokens, self.digest)


class Guard(Protocol):
    """Says who takes part in a run. All of it is called in the network thread and must not block."""

    def admits(self, peer: str, beat: Heartbeat) -> bool:
        """Whether a peer with this heartbeat is one of the run."""
        ...

    def lets_in(self, peer: str) -> bool:
        """Whether a peer may have streams with us, by its heartbeats so far."""
        ...

    def looked(self, others: Mapping[str, Heartbeat]) -> None:
        """Those that are admitted were looked at."""
        ...


def first_heartbeat(description: bytes, name: str, addresses: list[str], location: Location | None = None) -> Heartbeat:
    """What a peer says of itself when it joins. Raises BadInput for a name that others would not take."""
    try:
        return Heartbeat(description=description, name=name, addresses=addresses[:8], location=location)
    except ValidationError:
        raise BadInput(f"the name {name!r} cannot be told to others: at most 64 characters, all printable") from None


def peers_key(run: str) -> str:
    return f"run/{run}/peers"


def read_heartbeat(peer_id: str, value: dict[str, Any]) -> Heartbeat | None:
    """The heartbeat in a peer's record, or None where it is none."""
    try:
        beat = Heartbeat.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        place = ".".join(one_line(part) for part in first["loc"])
        dropped.note("heartbeat", f"bad {place}: {first['msg']}", peer_id)
        return None
    if beat.sent_at > clock.now() + AHEAD:
        dropped.note("heartbeat", "it is from the future", peer_id)
        return None
    return beat


def crowd(others: int) -> float:
    """How many times as rare as among few the heartbeats and looks are among so many others.

    A look brings the heartbeats of all: so a peer takes a bounded number of bytes a second, however many there are.
    """
    return max(1.0, others / FEW)


def look_pause(others: int) -> float:
    """Seconds between two looks at the heartbeats of so many others."""
    return LOOK_EVERY * crowd(others)


def beat_pause(others: int) -> float:
    """Seconds between two heartbeats where nothing changes; whoever looks finds one at any time."""
    return min(BEAT_AT_LEAST_EVERY, BEAT_EVERY * crowd(others))


def beat_gap(others: int) -> float:
    """Seconds between two heartbeats where much changes."""
    return min(BEAT_AT_LEAST_EVERY, BEAT_GAP * crowd(others))


class Membership:
    """Our own heartbeat, and the view of the others. ``on_change`` is called in the loop when that may have changed."""

    def __init__(self, node: Node, run: str, on_change: Callable[[], None]) -> None:
        self.session = Session(clock.now())
        self.on_outranked: Callable[[], None] = lambda: None
        """Called in the loop when an older session of our identity turns out to be alive."""
        self._node = node
        self._run = run
        self._on_change = on_change
        self.admits: Callable[[str, Heartbeat], bool] = lambda peer, beat: True
        """Whose heartbeat counts. Asked at every look, so that the answer may change."""
        self.foreign: frozenset[int] = frozenset()
        """Protocols that peers of the run were last seen to speak, and we do not."""
        self._mine = Heartbeat()
        self._others: dict[str, Heartbeat] = {}
        self._found = 0  # heartbeats of others at the last look, whether we deal with them or not
        self._changed = asyncio.Event()
        self._look_now = asyncio.Event()
        self._looked = asyncio.Condition()
        self._looks = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, mine: Heartbeat) -> None:
        """Publish ``mine`` and take a first look; from then on both go on by themselves until ``close``."""
        self._mine = mine.model_copy(update={"session": self.session.id, "began": self.session.began})
        await asyncio.gather(self._publish(), self._name_the_run(), self._look())
        self._tasks = [
            asyncio.create_task(keep()) for keep in (self._keep_beating, self._keep_naming_the_run, self._keep_looking)
        ]

    async def close(self) -> None:
        """Stop, and take our heartbeat back, so that nobody who comes later looks for us."""
        await tasks.end(self._tasks)
        if self._tasks and not self.session.outranked and await self._node.check():
            self._mine = Heartbeat(state=LEFT)
            await self._publish()

    @property
    def mine(self) -> Heartbeat:
        return self._mine

    @property
    def others(self) -> dict[str, Heartbeat]:
        """The other peers that have a fresh heartbeat, by peer id."""
        return dict(self._others)

    def update(self, **changes: Any) -> None:
        """Change our heartbeat; it is published soon."""
        self._mine = self._mine.model_copy(update=changes)
        self._changed.set()

    def note_commit(self, peer_ids: Iterable[str], step: int, digest: bytes, tokens: int) -> None:
        """The peers of a group we committed with are at the new state: known before their heartbeats say so."""
        for peer in peer_ids:
            known = self._others.get(peer, Heartbeat())
            if peer != self._node.peer_id and known.step < step:
                moved = {"step": step, "digest": digest, "tokens": tokens, "expected": True, "ready_at": 0.0}
                self._others[peer] = known.model_copy(update=moved | {"sent_at": clock.now()})
        self._on_change()

    def forget(self, peer_id: str) -> None:
        """A peer said that it leaves; its heartbeat counts no more unless it is renewed."""
        self._others.pop(peer_id, None)
        self._on_change()

    def seen(self, now: float) -> dict[str, Seen]:
        """The others as a round looks at them; ``now`` is the loop's time, on which ``Seen.ready_at`` is given."""
        offset = now - clock.now()
        return {
            peer: Seen(peer, beat.step, beat.digest, beat.expected, beat.ready_at + offset, beat.tokens)
            for peer, beat in self._others.items()
            if beat.has_state
        }

    async def refresh(self) -> None:
        """Wait for a look at the DHT that began after this call."""
        target = self._looks + 2 if self._look_now.is_set() else self._looks + 1
        self._look_now.set()
        async with self._looked:
            await within(2 * DHT_DEADLINE, self._looked.wait_for(lambda: self._looks >= target))

    async def _keep_beating(self) -> None:
        while True:
            with suppress(asyncio.TimeoutError):
                await within(beat_pause(self._found), self._changed.wait())
            self._changed.clear()
            await self._whatever_happens(self._publish())
            await asyncio.sleep(beat_gap(self._found))

    async def _keep_naming_the_run(self) -> None:
        while True:
            await asyncio.sleep(RUN_EVERY)
            await self._whatever_happens(self._name_the_run())

    async def _keep_looking(self) -> None:
        while True:
            with suppress(asyncio.TimeoutError):
                await within(look_pause(self._found) if self._node.online else LOOK_AGAIN, self._look_now.wait())
            self._look_now.clear()
            await self._whatever_happens(self._look())
            self._looks += 1
            async with self._looked:
                self._looked.notify_all()

    @staticmethod
    async def _whatever_happens(step: Coroutine[Any, Any, None]) -> None:
        """One look or heartbeat that fails, for whatever reason, must not be the last one."""
        try:
            await step
        except Exception:
            logger.exception("the DHT failed; trying again")

    async def _publish(self) -> None:
        beat = self._mine = self._mine.model_copy(update={"sent_at": clock.now()})
        await self._store("our heartbeat", peers_key(self._run), beat.record(), BEAT_LIVES)

    async def _name_the_run(self) -> None:
        await self._store("the name of our run", RUNS, {"run": self._run}, RUN_LIVES)

    async def _store(self, what: str, key: str, value: dict[str, Any], ttl: float) -> None:
        try:
            await within(DHT_DEADLINE, self._node.publish(key, value, ttl))
        except asyncio.TimeoutError:
            logger.warning("the DHT did not take %s within %g s", what, DHT_DEADLINE)

    async def _look(self) -> None:
        try:
            copies = COPIES if self._found > FEW else None
            beats = await within(DHT_DEADLINE, heartbeats(self._node, self._run, copies))
        except asyncio.TimeoutError:
            logger.warning("the DHT did not answer within %g s", DHT_DEADLINE)
            return
        if not self._node.online:
            return  # we see nobody, which says nothing of them
        if (own := beats.pop(self._node.peer_id, None)) is not None:
            self._see_own(own)
        self._found = len(beats)
        self.foreign = frozenset(beat.protocol for beat in beats.values()) - {PROTOCOL}
        beats = {peer: beat for peer, beat in beats.items() if beat.protocol == PROTOCOL and self.admits(peer, beat)}
        beats = self._as_many_as_we_can_deal_with(beats)
        for peer, beat in beats.items():
            known = self._others.get(peer)
            if known is not None and known.sent_at >= beat.sent_at:
                beats[peer] = known  # what we learnt from the peer itself is newer
        oldest = clock.now() - BEAT_LIVES
        fresh = {peer: beat for peer, beat in beats.items() if beat.sent_at > oldest}
        for peer in fresh.keys() ^ self._others.keys():
            logger.info("peer %s is %s", peer, "here" if peer in fresh else "not here any more")
        self._others = fresh
        self._on_change()

    def _as_many_as_we_can_deal_with(self, beats: dict[str, Heartbeat]) -> dict[str, Heartbeat]:
        """Those we know already, and then the others, as long as there is room."""
        if len(beats) <= MOST_PEERS:
            return beats
        dropped.note("heartbeat", f"{len(beats)} peers are in the run, we deal with {MOST_PEERS}")
        return dict(sorted(beats.items(), key=lambda item: (item[0] not in self._others, item[0]))[:MOST_PEERS])

    def _see_own(self, beat: Heartbeat) -> None:
        before = self.session.outranked
        self.session.see(beat)
        if self.session.outranked and not before:
            self.on_outranked()


async def runs(node: Node) -> list[str]:
    """The names of the runs whose peers, or authors, say that there are."""
    said = (value.get("run") for value in (await node.lookup(RUNS)).values())
    return sorted({name for name in said if isinstance(name, str) and re.fullmatch(RUN_ID, name)})[:MOST_RUNS]


def which(known: Sequence[str], wanted: str | None) -> str:
    """The one of the ``known`` runs that is wanted; a public one may be named without its author. Raises BadInput."""
    fitting = [run for run in known if wanted is None or wanted in (run, run.partition("/")[0])]
    if len(fitting) == 1:
        return fitting[0]
    there = ", ".join(sorted(known)) or "none"
    if not fitting:
        if wanted is None:
            raise BadInput("no run is known there: none of its peers is there, or the address is of another network")
        raise BadInput(f"run {wanted} is not known there; known are: {there}")
    raise BadInput(f"several runs are known there, name one of them with --run: {', '.join(fitting)}")


async def heartbeats(node: Node, run: str, copies: int | None = None) -> dict[str, Heartbeat]:
    """What the peers of a run say of themselves, by peer id; not those that have left. See ``Node.lookup``."""
    records = await node.lookup(peers_key(run), copies)
    found = {peer: read_heartbeat(peer, value) for peer, value in records.items()}
    return {peer: beat for peer, beat in found.items() if beat is not None and beat.state != LEFT}


async def status(node: Node, run: str) -> list[dict[str, Any]]:
    """The peers of a run, as plain dicts for people to look at."""
    return [
        {
            "run": run,
            "peer_id": peer,
            "name": beat.name,
            "outer_step": beat.step,
            "digest": beat.digest.hex(),
            "tokens": beat.tokens,
            "state": beat.state,
            "pace": beat.pace,
            "age_s": round(max(0.0, clock.now() - beat.sent_at), 1),
            "addresses": beat.addresses,
        }
        for peer, beat in sorted((await heartbeats(node, run)).items())
    ]
