"""Runs the round over the network: carries events to the state machine and does what it says."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from prime_p2p.allreduce.butterfly import ReduceError, Traffic
from prime_p2p.allreduce.codec import BlockVector
from prime_p2p.allreduce.exchanges import Exchanges
from prime_p2p.allreduce.plan import Plan
from prime_p2p.network import dropped
from prime_p2p.network.frames import Message
from prime_p2p.network.identity import verify
from prime_p2p.network.node import Node
from prime_p2p.swarm import events as ev
from prime_p2p.swarm.certificate import BadCertificate, Certificate, ballot
from prime_p2p.swarm.gathering import RoundPolicy, Seen
from prime_p2p.swarm.groups import Group
from prime_p2p.swarm.links import Links
from prime_p2p.swarm.messages import Committed, Leave, Ping, Vote
from prime_p2p.swarm.rounds import RoundMachine

logger = logging.getLogger(__name__)

NO_NETWORK = "this peer is cut off from the network"  # why a round is missed


@dataclass
class RoundResult:
    """How our attempt at an outer step ended.

    ``group`` is the committed one, and ``update`` then holds its update; None where the round was missed, for
    ``reason``. Even then our pseudo-gradient may have ``contributed`` to what others committed. ``certificate`` proves
    the commit, whenever there is one. ``seconds`` has the time spent in gather, reduce and commit, over all attempts.
    """

    group: Group | None = None
    update: BlockVector | None = None
    certificate: Certificate | None = None
    reason: str = ""
    contributed: bool = False
    attempts: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    seconds: dict[str, float] = field(default_factory=lambda: {"gather": 0.0, "reduce": 0.0, "commit": 0.0})


_PHASE_SECONDS = {
    ev.Phase.GATHERING: "gather",
    ev.Phase.REDUCING: "reduce",
    ev.Phase.VOTING: "commit",
    ev.Phase.UNCERTAIN: "commit",
}


@dataclass
class _Round:
    """One call of ``make_round``: what we bring, and the future its caller waits for."""

    mine: BlockVector
    update: BlockVector
    done: asyncio.Future[RoundResult]
    result: RoundResult = field(default_factory=RoundResult)


class RoundRunner:
    """The rounds of one peer. All methods are for the loop's thread; ``on_hurry`` and ``on_phase`` are called in it."""

    def __init__(
        self,
        node: Node,
        run: str,
        policy: RoundPolicy,
        on_hurry: Callable[[], None],
        on_phase: Callable[[str, int], None],
    ) -> None:
        self._node = node
        self._was_online = True
        self._machine = RoundMachine(run, node.peer_id, policy, first_nonce=time.time_ns() // 1000)
        self._on_hurry = on_hurry
        self._on_phase = on_phase
        self._exchanges = Exchanges(node, run, policy.stall_timeout)
        self.links = Links(node, run, policy.stall_timeout, self._on_message, self._on_lost)
        self.on_leave: Callable[[str], None] = lambda peer: None
        self.admits: Callable[[str], bool] = lambda peer: True
        """Whose messages count."""
        self._round: _Round | None = None
        self._abandoned = ""  # why no round is begun any more
        self._reduce: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._phase_since = self._now()

    async def start(self) -> None:
        await self._exchanges.serve()
        await self.links.serve()

    async def close(self) -> None:
        """End a round under way as missed, tell the others that we leave, and end every task."""
        await self.abandon("this peer is leaving")
        if self._timer is not None:
            self._timer.cancel()
        await self._stop_reduce()
        await self.links.close()
        self._exchanges.close()

    @property
    def reducing(self) -> bool:
        """Whether an all-reduce is under way, which needs the whole link."""
        return self._machine.phase is ev.Phase.REDUCING

    async def abandon(self, reason: str, after: float = 0.0) -> None:
        """End a round under way as missed, unless it ends by itself within ``after`` seconds; no other is begun."""
        self._abandoned = reason
        if self._round is not None:
            await asyncio.wait([self._round.done], timeout=after)
            self._finish(RoundResult(reason=reason))

    def peers_seen(self, peers: dict[str, Seen]) -> None:
        """Take the whole current view of the other peers; we stay in touch with all of them."""
        self.links.keep(peers)
        self._handle(ev.PeersSeen(peers))

    def sit_out(self) -> None:
        """Nobody is to wait for us until the next ``make_round``."""
        self._handle(ev.SitsOut())

    def state_changed(self, held: ev.StateChanged) -> None:
        """We now hold another state."""
        self._handle(held)

    async def make_round(self, mine: BlockVector, update: BlockVector, ready: ev.Ready) -> RoundResult:
        """Try to make one outer step with whoever is there and goes by the same terms.

        ``mine`` is our pseudo-gradient; ``update`` receives the result. Neither may be touched until this returns.
        """
        assert self._round is None
        if self._abandoned:
            return RoundResult(reason=self._abandoned)
        self._round = round_ = _Round(mine, update, asyncio.get_running_loop().create_future())
        try:
            await self._wait_for_the_network(round_)
            if not round_.done.done():
                self._phase_since = self._now()
                self._handle(ready)
            return await round_.done
        finally:
            self._round = None
            await self._stop_reduce()

    async def _wait_for_the_network(self, round_: _Round) -> None:
        """No round is begun without a network; nor is there one where it does not come back."""
        back = asyncio.ensure_future(self._node.back())
        either: list[asyncio.Future[Any]] = [back, round_.done]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            back.cancel()
        if back.done() and not back.result():
            self._finish(RoundResult(reason=NO_NETWORK))

    # ---- events

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _on_message(self, peer: str, message: Message) -> None:
        if not self.admits(peer):
            return
        if isinstance(message, Leave):
            self.on_leave(peer)
        if isinstance(message, (Vote, Committed)) and not self._is_signed(peer, message):
            dropped.note("vote", "it is not signed by whoever is said to have voted", peer)
            return
        self._handle(ev.Received(peer, message))
        if not isinstance(message, Ping):
            logger.debug("from %s: %r", peer, message)

    def _is_signed(self, peer: str, message: Vote | Committed) -> bool:
        """False for a vote, or a word of all votes, that would count and must not; for another group than ours none
        counts."""
        group = self._machine.group_of(message.group_id)
        if group is None or group.member(peer) is None:
            return True
        if isinstance(message, Vote):
            return verify(peer, ballot(message.group_id, message.update_digest), message.signature)
        try:
            Certificate(group, message.update_digest, tuple(message.signatures)).check()
        except BadCertificate:
            return False
        return True

    def _on_lost(self, peer: str) -> None:
        if not self._node.online:
            self._handle(ev.CutOff())
        self._handle(ev.PeerLost(peer))

    def _wake(self) -> None:
        if not self._node.alive:
            self._finish(RoundResult(reason=NO_NETWORK))
        cut_off = not (self._node.online and self._was_online)  # said once more when it is over: that is what counts
        self._was_online = self._node.online
        self._handle(ev.CutOff() if cut_off else ev.Woken())

    def _handle(self, event: ev.Event) -> None:
        phase_before = self._machine.phase
        try:
            actions = self._machine.handle(event, self._now())
        except Exception as error:
            self._fail(error)
            raise
        if self._machine.phase is not phase_before:
            self._account(phase_before)
        for action in actions:
            self._do(action)
        self._set_timer()

    def _account(self, phase_before: ev.Phase) -> None:
        now = self._now()
        name = _PHASE_SECONDS.get(phase_before)
        if name is not None and self._round is not None:
            self._round.result.seconds[name] += now - self._phase_since
        self._phase_since = now
        attempt = self._machine.attempt
        self._on_phase(self._machine.phase.value, 0 if attempt is None else len(attempt.group.members))

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now = self._now()
        wake_at = self._machine.wake_at(now)
        delay = None if wake_at is None else max(0.0, wake_at - now)
        loop = asyncio.get_running_loop()
        self._timer = None if delay is None else loop.call_later(delay, self._wake)

    # ---- actions

    def _do(self, action: ev.Action) -> None:
        if isinstance(action, ev.Send):
            self.links.send(action.to, action.message)
        elif isinstance(action, ev.StartReduce):
            self._start_reduce(action.group)
        elif isinstance(action, ev.StopReduce):
            if self._reduce is not None:
                self._reduce.cancel()
        elif isinstance(action, ev.HurryUp):
            self._on_hurry()
        elif isinstance(action, ev.Commit):
            round_ = self._round
            if round_ is not None:
                round_.result.group = action.group
                round_.result.update = round_.update
                round_.result.attempts = action.attempts
                round_.result.certificate = action.certificate
                self._finish(round_.result)
        elif isinstance(action, ev.Missed) and self._round is not None:
            self._round.result.reason = action.reason
            self._round.result.contributed = action.contributed
            self._round.result.attempts = self._machine.attempts
            self._finish(self._round.result)

    def _fail(self, error: Exception) -> None:
        """A fault of our own: whoever called ``make_round`` is to see it, not to wait for ever."""
        if self._round is not None and not self._round.done.done():
            self._round.done.set_exception(error)

    def _finish(self, result: RoundResult) -> None:
        if self._round is not None and not self._round.done.done():
            self._round.done.set_result(result)

    def _start_reduce(self, group: Group) -> None:
        assert self._round is not None
        before = self._reduce
        self._reduce = asyncio.create_task(self._run_reduce(group, self._round, before))
        self._reduce.add_done_callback(self._reduce_ended)

    async def _run_reduce(self, group: Group, round_: _Round, before: asyncio.Task[None] | None) -> None:
        """One all-reduce, once the one before it has let go of the buffers."""
        if before is not None:
            await asyncio.wait([before])
        plan = Plan(
            group.id,
            group.peer_ids,
            [member.weight for member in group.members],
            group.part_blocks(round_.mine.blocks),
            self._machine.me,
            [member.bandwidth for member in group.members],
        )
        try:
            digest = await self._exchanges.reduce(plan, round_.mine, round_.update, round_.result.traffic)
        except ReduceError as error:
            logger.info("all-reduce of outer step %d failed: %s", group.step + 1, error)
            self._handle(ev.ReduceFailed(group.id, error.blamed))
        else:
            signature = self._node.identity.sign(ballot(group.id, digest))
            self._handle(ev.ReduceDone(group.id, digest, signature))

    def _reduce_ended(self, reduce: asyncio.Task[None]) -> None:
        error = None if reduce.cancelled() else reduce.exception()
        if isinstance(error, Exception):
            self._fail(error)

    async def _stop_reduce(self) -> None:
        if self._reduce is not None:
            self._reduce.cancel()
            await asyncio.gather(self._reduce, return_exceptions=True)
            self._reduce = None
