"""A peer's place in a run, for code that is not asynchronous: the network runs on a thread, and this class calls it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from prime_p2p.allreduce.codec import BlockVector
from prime_p2p.errors import BadInput, PrimeError
from prime_p2p.network.deadline import within
from prime_p2p.network.dial_back import DialBack
from prime_p2p.network.loop import LoopThread
from prime_p2p.network.node import Node, NodeConfig
from prime_p2p.network.reachability import Reachability
from prime_p2p.network.speed import Speed
from prime_p2p.network.version import PROTOCOL
from prime_p2p.swarm import events as ev
from prime_p2p.swarm.certificate import Certificate
from prime_p2p.swarm.gathering import RoundPolicy
from prime_p2p.swarm.guests import Guests
from prime_p2p.swarm.location import Location
from prime_p2p.swarm.membership import Guard, Heartbeat, Membership, first_heartbeat
from prime_p2p.swarm.runner import RoundResult, RoundRunner
from prime_p2p.temporary import TemporaryFolder

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

CALL_DEADLINE = 60.0  # seconds a short call to the network thread may take
LAST_ROUND = 3.0  # seconds that a leaving peer gives the round it is in
TRANSFER_DEADLINE = 24 * 3600.0  # a transfer ends by lack of progress; this one only says that no wait is without
ROUND_DEADLINE = 24 * 3600.0  # a round has deadlines of its own; this one only says that no wait is without


@dataclass(frozen=True)
class SwarmOptions:
    """How this peer is reached, and what it tells others of itself.

    One that is ``guarded`` takes no stream before it has been told who is admitted, see ``Swarm.guard``.

    ``identity`` is the file of its key (created where missing; without one the peer gets a new identity each time),
    ``bandwidth`` what it can send, in Mbit/s: a peer's part of the all-reduce grows with it. With ``or_next`` the peer
    takes the next free port above ``port`` where that is taken; with ``relayed`` it is reached through relays, without
    asking others first whether that is needed; with ``quic`` it listens on that too. ``known`` is a file of the peers
    met before: they are tried where no bootstrap address answers.
    """

    identity: Path | None = None
    hosts: tuple[str, ...] = ("127.0.0.1",)
    port: int = 0
    announce: tuple[str, ...] = ()
    bandwidth: float = 100.0
    name: str = ""
    location: Location | None = None
    guarded: bool = False
    policy: RoundPolicy = field(default_factory=RoundPolicy)
    or_next: bool = False
    relayed: bool = False
    quic: bool = False
    known: Path | None = None

    def node(self, identity: Path, bootstrap: Sequence[str]) -> NodeConfig:
        """What the node of this peer is to be like."""
        where = NodeConfig(identity, tuple(bootstrap), self.hosts, self.port, self.or_next, self.announce)
        return replace(where, known=self.known, quic=self.quic)


@dataclass(frozen=True)
class Lineage:
    """A state that others hold, and who holds it."""

    step: int
    digest: bytes
    tokens: int
    peers: tuple[str, ...]


class Leaving(PrimeError):
    """A transfer was ended because this peer is to leave."""


class Swarm:
    """The other peers of one run. Use it as a context manager, or call ``close``.

    Raises BadInput where an option cannot be used and Unreachable where no bootstrap address answers. With no bootstrap
    addresses the peer starts a network of its own, which others join by its ``addresses``.
    """

    def __init__(self, run: str, bootstrap: Sequence[str] = (), options: SwarmOptions | None = None) -> None:
        self.run = run
        self.options = options or SwarmOptions()
        self.hurry = threading.Event()
        """Set when a group is about to close without us: end the inner steps early."""
        self.on_phase: Callable[[str, int], None] = lambda phase, group_size: None
        """Called in the network thread when the round enters a phase, with the size of the group."""
        self.on_certificate: Callable[[Certificate], None] = lambda certificate: None
        """Called in the network thread with the certificate of an outer step that this peer has made."""
        self._description = b""
        self._announced: dict[str, Any] = {}
        self._transfer: Future[Any] | None = None
        self.leaving = False
        """Set by ``hold_no_more``: nothing that takes long is begun any more."""
        identity, self._temporary = self.options.identity, None
        if identity is None:
            self._temporary = TemporaryFolder()
            identity = self._temporary.path / "identity.key"
        self._loop = LoopThread(f"swarm-{run}")
        try:
            opened = self._open(self.options.node(identity, bootstrap))
            self.node, self._runner, self._membership = self.call(opened)
        except BaseException:
            self._loop.close()
            self._remove_temporary()
            raise
        self.peer_id = self.node.peer_id
        self.founder = all(address.endswith(f"/{self.peer_id}") for address in bootstrap)
        """Whether this peer joined nobody: the network is its own, and so is whatever begins there."""
        self.addresses = self.call(self.node.addresses())
        """Multiaddresses that others can give as a bootstrap address."""

    async def _open(self, config: NodeConfig) -> tuple[Node, RoundRunner, Membership]:
        node = await Node.create(config)
        try:
            runner = RoundRunner(node, self.run, self.options.policy, self.hurry.set, self._phase)
            membership = Membership(node, self.run, self._peers_changed)
            self._guests = Guests(membership.refresh)
            if self.options.guarded:
                node.guard(self._guests.lets_in)
            runner.on_leave = membership.forget
            membership.on_outranked = self._outranked
            await runner.start()
            await Speed(node, willing=lambda: not runner.reducing).serve()
            dial_back = DialBack(node)
            await dial_back.serve()
            Reachability(node, dial_back, partial(self._readdressed, membership), self.options.relayed).start()
        except BaseException:
            await node.close()
            raise
        self._changed = asyncio.Condition()
        return node, runner, membership

    def close(self) -> None:
        """Tell the others that we leave, and end everything; takes a few seconds at most. May be called again."""
        if self._loop.closed:
            return
        try:
            self.call(self._close(), timeout=8.0)
        except TimeoutError:
            logger.warning("the network took too long to close")
        finally:
            self._loop.close()
            self._remove_temporary()

    async def _close(self) -> None:
        await self._membership.close()
        await self._runner.close()
        await self.node.close()

    def _remove_temporary(self) -> None:
        if self._temporary is not None:
            self._temporary.close()

    def __enter__(self) -> Swarm:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def call(self, coroutine: Coroutine[Any, Any, Result], timeout: float = CALL_DEADLINE) -> Result:
        """Run a coroutine in the network thread and wait for its result."""
        return self._loop.run(coroutine, timeout)

    def transfer(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Like ``call``, for what may take long: it has no deadline but its own, and ends when this peer is to leave.

        Raises Leaving in that case, and BadInput where another process turns out to be this peer.
        """
        if self.leaving:
            raise Leaving("this peer is leaving")
        self._transfer = self._loop.spawn(coroutine)
        try:
            return self._transfer.result(TRANSFER_DEADLINE)
        except CancelledError:
            self._check_identity()
            raise Leaving("this peer is leaving") from None
        finally:
            self._transfer.cancel()
            self._transfer = None

    # ---- who is here

    def enter(self, description: bytes) -> None:
        """Announce that we are joining; ``description`` is the hash of what all peers of the run must agree on."""
        self._description = description
        options = self.options
        mine = first_heartbeat(description, options.name, self.addresses, options.location)
        self.call(self._membership.start(mine.model_copy(update=self._announced)))

    def guard(self, guard: Guard, **announced: Any) -> None:
        """From now on, only peers that ``guard`` admits are there; ``announced`` becomes a part of our heartbeat.

        To be called before ``enter``. A guard is asked in the network thread.
        """
        assert self.options.guarded
        self._guests.guard, self._announced = guard, announced
        self._membership.admits = guard.admits
        self._runner.admits = guard.lets_in

    def _expel(self) -> None:
        """Whoever is not admitted any more has no stream with us."""
        guard = self._guests.guard
        if guard is not None:
            self.node.expel(guard.lets_in)
            self._runner.links.expel(guard.lets_in)

    async def announce(self, **changes: Any) -> None:
        """To be called in the network thread: change our heartbeat, and look at once who is admitted now."""
        self._expel()
        self._membership.update(**changes)
        await self._membership.refresh()

    def others(self, refresh: bool = False) -> dict[str, Heartbeat]:
        """The other peers with a fresh heartbeat; ``refresh`` looks at the DHT anew, which takes some 100 ms."""
        return self.call(self._others(refresh))

    async def _others(self, refresh: bool) -> dict[str, Heartbeat]:
        if refresh:
            await self._membership.refresh()
        return self._membership.others

    def fellows(self) -> list[str]:
        """To be called in the network thread: the others that train the same, also those that have no state yet."""
        others = self._membership.others.items()
        return [peer for peer, beat in others if beat.description == self._description]

    def best_lineage(self, refresh: bool = False) -> Lineage | None:
        """The state that the run should go on from, where others hold a better one than we do.

        More contributed tokens win, then the smaller digest (see ``Heartbeat.rank``). A peer that missed a round finds
        the others' newest state here, and so does a peer whose lineage lost against another.
        """
        others = self.others(refresh)
        held = {peer: beat for peer, beat in others.items() if beat.has_state and beat.description == self._description}
        if not held:
            return None
        best = max(held.values(), key=lambda beat: beat.rank)
        mine = self._membership.mine
        if mine.has_state and best.rank <= mine.rank:
            return None
        holders = tuple(sorted(peer for peer, beat in held.items() if beat.digest == best.digest))
        return Lineage(best.step, best.digest, best.tokens, holders)

    def check_protocol(self) -> None:
        """Raises BadInput where the peers of the run speak another protocol than we do."""
        foreign = self.call(self._foreign())
        if foreign and not self.others():
            raise BadInput(
                f"run {self.run!r} speaks protocol {max(foreign)} and this program protocol {PROTOCOL}: "
                + ("upgrade prime_p2p" if max(foreign) > PROTOCOL else "its peers have to be upgraded first")
            )

    async def _foreign(self) -> frozenset[int]:
        return self._membership.foreign

    def wait_for(self, condition: Callable[[dict[str, Heartbeat]], bool], timeout: float) -> bool:
        """Wait until ``condition`` holds for the other peers' heartbeats; False when it did not in time.

        Raises BadInput where another process turns out to be this peer, and was there first.
        """
        met = self.call(self._wait_for(condition, timeout), timeout + CALL_DEADLINE)
        self._check_identity()
        return met

    async def _wait_for(self, condition: Callable[[dict[str, Heartbeat]], bool], timeout: float) -> bool:
        async with self._changed:
            session = self._membership.session
            waiting = self._changed.wait_for(lambda: session.outranked or condition(self._membership.others))
            try:
                await within(timeout, waiting)
            except asyncio.TimeoutError:
                return False
            return True

    def wait_for_peers(self, count: int, timeout: float) -> bool:
        """Wait until ``count`` other peers that train the same hold a state; False when they did not in time."""

        def enough(others: dict[str, Heartbeat]) -> bool:
            return sum(beat.has_state and beat.description == self._description for beat in others.values()) >= count

        return self.wait_for(enough, timeout)

    # ---- rounds

    def hold(self, step: int, digest: bytes, tokens: int, *, terms: bytes = b"", **changes: Any) -> None:
        """Tell everyone, and our own round, which state we hold now, and by which terms we go on from it.

        Raises BadInput where another process turns out to be this peer, and was there first.
        """
        self._check_identity()
        self.hurry.clear()
        self.call(self._hold(ev.StateChanged(step, digest, tokens, terms), changes))

    async def _hold(self, held: ev.StateChanged, changes: dict[str, Any]) -> None:
        self._membership.update(step=held.step, digest=held.digest, tokens=held.tokens, **changes)
        self._runner.state_changed(held)

    def make_round(self, mine: BlockVector, update: BlockVector, weight: int, terms: bytes = b"") -> RoundResult:
        """Try to make one outer step with whoever is there, see ``RoundRunner.make_round``.

        Raises BadInput where another process turns out to be this peer, and PrimeError where there is no network left.
        """
        self._check_identity()
        round_ = self._runner.make_round(mine, update, ev.Ready(weight, float(self.options.bandwidth), terms))
        result = self.call(round_, ROUND_DEADLINE)
        if result.group is None and not self.node.alive:
            raise PrimeError(
                "the libp2p daemon cannot be kept running; start this peer again, it resumes from its folder"
            )
        self.hurry.clear()
        return result

    def sit_out(self, **changes: Any) -> None:
        """This peer brings nothing to the coming round: tell the others, who then do not wait for it."""
        self.call(self._sit_out(changes))

    async def _sit_out(self, changes: dict[str, Any]) -> None:
        self._membership.update(**changes)
        self._runner.sit_out()

    def note_commit(self, result: RoundResult, step: int, digest: bytes, tokens: int) -> None:
        """We made the outer step of this round: so did the others of its group."""
        self.call(self._note_commit(result, step, digest, tokens))

    async def _note_commit(self, result: RoundResult, step: int, digest: bytes, tokens: int) -> None:
        assert result.group is not None
        assert result.certificate is not None
        self._membership.note_commit(result.group.peer_ids, step, digest, tokens)
        self.on_certificate(result.certificate)

    def hold_no_more(self) -> None:
        """From a signal handler or another thread: let go of a caller that waits in here.

        A transfer ends at once with Leaving; a round gets a few seconds to end, then it is missed.
        """
        self.leaving = True
        if self._transfer is not None:
            self._transfer.cancel()
        if not self._loop.closed:  # a second signal may come when all that is left is outside
            self._loop.spawn(self._runner.abandon("this peer is leaving", after=LAST_ROUND))

    def _outranked(self) -> None:
        self.hurry.set()  # the caller learns of it where it calls next
        if self._transfer is not None:
            self._transfer.cancel()

    def _check_identity(self) -> None:
        if self._membership.session.outranked:
            raise BadInput(
                f"another process is peer {self.peer_id} already, on another machine or in another folder; give this "
                "one a folder, or an --identity, of its own"
            )

    def _readdressed(self, membership: Membership, addresses: list[str]) -> None:
        self.addresses = addresses
        membership.update(addresses=addresses[:8])

    def _phase(self, phase: str, group_size: int) -> None:
        self.on_phase(phase, group_size)

    def _peers_changed(self) -> None:
        loop = asyncio.get_running_loop()
        if self._guests.guard is not None:
            self._guests.guard.looked(self._membership.others)
            self._expel()
        known = {
            peer: seen
            for peer, seen in self._membership.seen(loop.time()).items()
            if self._membership.others[peer].description == self._description
        }
        self._runner.peers_seen(known)
        self._notifying = asyncio.ensure_future(self._notify())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
