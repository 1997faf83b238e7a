"""DiLoCo over a swarm: inner steps on this peer, outer steps with whoever else is there.

Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023 (arXiv:2311.08105); over the
internet with int8 pseudo-gradients: Jaghouar et al., "INTELLECT-1 Technical Report", 2024 (arXiv:2412.01152).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from prime_p2p.agreement import first_difference
from prime_p2p.allreduce.codec import BlockVector, Float32, bits_of
from prime_p2p.contributions.keeping import keep_certificates
from prime_p2p.errors import BadInput, PrimeError
from prime_p2p.long_work import Watch, unwatched
from prime_p2p.network import clock
from prime_p2p.outer.journal import Journal, JournalEntry
from prime_p2p.outer.nesterov import OuterOptimizer
from prime_p2p.outer.state import OuterState
from prime_p2p.outer.terms import OuterTerms, Unchanging
from prime_p2p.state.checkpoint import Checkpoint, LocalProgress
from prime_p2p.state.client import StateClient
from prime_p2p.state.follow import CaughtUp, Follower, Means
from prime_p2p.state.messages import description_hash
from prime_p2p.state.replay import replay
from prime_p2p.state.snapshots import Snapshots
from prime_p2p.state.standing import Standing
from prime_p2p.state.transfer import ServingLimits, Source, StateServer
from prime_p2p.swarm.runner import RoundResult
from prime_p2p.swarm.swarm import Swarm
from prime_p2p.temporary import TemporaryFolder
from prime_p2p.training.flat import FlatParameters
from prime_p2p.training.optimizer import Stateful
from prime_p2p.training.pseudo_gradient import PseudoGradient, UnfitPseudoGradient

logger = logging.getLogger(__name__)

CATCH_UPS = 4  # times that a peer that turns out to be behind catches up and tries again within one outer step
UNFIT_ROUNDS = 3  # pseudo-gradients in a row that are not fit to be averaged before the peer stops


@dataclass(frozen=True)
class DiLoCoOptions:
    """``directory`` keeps the journal (a temporary folder without one): ``journal_length`` outer steps for others, as
    many at all peers, and ``journal_keep`` for this peer's own restart, where that is more; ``description`` is what
    else all peers of the run must agree on; ``threads`` may be used by the outer step; ``resume`` is a checkpoint from
    this peer's own disk, to go on from instead of the model's parameters. A pseudo-gradient more than
    ``explosion_factor`` times as large as this peer's usually are is not sent (0: any is). ``serving`` limits what
    others may fetch from this peer. Where nobody holds a state of the run, a peer that ``may_start`` it does so, and
    any other waits; None: one whose swarm has joined nobody may. ``codec`` is how pseudo-gradients travel, the same at
    all peers: "int8", or "int4" in half the bytes. ``initial_digest`` names the state that the run begins with, where
    that is known: another one is refused. ``watch`` is told of what takes long.
    """

    directory: Path | None = None
    journal_length: int = 16
    journal_keep: int = 0
    description: dict[str, Any] = field(default_factory=dict)
    threads: int = 1
    resume: Checkpoint | None = None
    explosion_factor: float = 10.0
    serving: ServingLimits = field(default_factory=ServingLimits)
    may_start: bool | None = None
    codec: str = "int8"
    initial_digest: bytes | None = None
    watch: Watch = unwatched


@dataclass(frozen=True)
class OuterStep:
    """What came of one attempt at an outer step. ``round.group`` is None where it was missed.

    ``outer_step`` and ``digest`` are those of the state held afterwards; ``tokens`` what this peer contributed;
    ``seconds`` of the phases and in all since the last commit; ``caught_up`` is how we came to the state of the others
    since the attempt before, or since we joined.
    """

    outer_step: int
    digest: bytes
    tokens: int
    round: RoundResult
    seconds: dict[str, float]
    caught_up: CaughtUp = field(default_factory=CaughtUp)

    @property
    def committed(self) -> bool:
        return self.round.group is not None


class DiLoCo:
    """Makes a plain training loop a peer of a run: call ``step`` after each ``inner_optimizer.step()``.

    Joining happens here: where others hold a state of the run, the model starts from it; otherwise, at a peer that may
    start the run, the model's own parameters are the first anchor. ``inner_optimizer`` stays the caller's and keeps its
    state over outer steps. ``inner_steps`` may be a function of the outer step that they lead on from.

    Raises BadInput where the others train something else (their first difference is named) or the model has nothing to
    train, PrimeError where others hold the run's state and none of them gives it.
    """

    def __init__(
        self,
        model: torch.nn.Module | FlatParameters,
        inner_optimizer: Stateful,
        swarm: Swarm,
        inner_steps: int | Callable[[int], int],
        outer: OuterOptimizer | OuterTerms | None = None,
        options: DiLoCoOptions | None = None,
    ) -> None:
        self._inner_steps_at = inner_steps if callable(inner_steps) else lambda _: inner_steps
        first_ones = self._inner_steps_at(0)
        if first_ones < 1:
            raise BadInput(f"inner_steps must be at least 1, not {first_ones}")
        options = options or DiLoCoOptions()
        bits = bits_of(options.codec)
        self.swarm = swarm
        self.inner_optimizer = inner_optimizer
        outer = outer or OuterOptimizer()
        self.terms = Unchanging(outer) if isinstance(outer, OuterOptimizer) else outer
        self.parameters = model if isinstance(model, FlatParameters) else FlatParameters(model)
        self._shared = {
            "model": {"parameters": self.parameters.n, "layout": self.parameters.layout},
            "round": {"inner_steps": first_ones, "codec": options.codec},
            "outer": asdict(self.terms.outer_at(0)),
        } | options.description
        self.state = self._first_state(options)
        local = options.resume.local if options.resume else None
        self.inner_step = local.inner_step if local else 0
        """Inner steps since the last outer step was committed or missed."""
        self.tokens = local.tokens if local else 0
        """Tokens behind the pseudo-gradient: since the last outer step that was committed."""
        self._earlier_steps = local.earlier_steps if local else 0  # inner steps behind it, from rounds that were missed
        if (directory := options.directory) is None:
            self._temporary = TemporaryFolder()  # goes with this object
            directory = self._temporary.path
        self.journal = Journal(directory, options.journal_length, options.journal_keep)
        self._go_on_with_the_journal(options.watch)
        self._mine = PseudoGradient(self.parameters, options.explosion_factor, bits)
        self._mine.usual.past.extend(local.usual_sizes if local else ())
        self._update = BlockVector.empty(self.parameters.n, bits)
        self._unfit_rounds = 0
        self._inner_since = self._committed_at = time.monotonic()
        self._inner_seconds = 0.0
        self._pace = 0.0  # seconds that the last outer step took
        self._outer = self.terms.outer_at(0)
        self._joined = False
        self._inner_step_seconds = 0.0  # that an inner step took on the way to the last round
        self._join(options, directory)

    def _first_state(self, options: DiLoCoOptions) -> OuterState:
        saved = options.resume
        if saved is None:
            initial = OuterState.initial(self.parameters.to_numpy(), options.threads)
            if options.initial_digest not in (None, initial.digest):
                raise BadInput(
                    f"run {self.swarm.run!r} began with another model than the one built here: its packages may be of "
                    "other versions, see prime-p2p doctor"
                )
            return initial
        ours, difference = saved.run == self.swarm.run, first_difference(self._shared, saved.description)
        if not ours or difference is not None:
            what = f"this run with another recipe: {difference}" if ours else f"run {saved.run!r}"
            raise BadInput(f"the folder has a checkpoint of {what}; give this peer a folder of its own")
        self.parameters.write(0, saved.local.parameters)
        self.inner_optimizer.load_state_dict(saved.local.optimizer)
        torch.set_rng_state(saved.local.rng_state)
        if saved.local.cuda_rng_state is not None and self.parameters.device.type == "cuda":
            torch.cuda.set_rng_state(saved.local.cuda_rng_state, self.parameters.device)
        return saved.outer

    def _go_on_with_the_journal(self, watch: Watch) -> None:
        """Make the outer steps again that were made after the checkpoint, before a sudden end."""
        if self.journal.path_from(self.state.step, self.state.digest):
            with self._keeping_progress() as moving:
                moving()
                replay(self.state, self.journal, self.terms, watch)

    def checkpoint(self, position: int) -> Checkpoint:
        """All that is needed to go on from here, to be saved with ``Checkpoints``; ``position`` is the caller's own.

        It is no copy: the next inner step changes it.
        """
        anchor, device = self.state.anchor, self.parameters.device
        local = LocalProgress(
            parameters=anchor if self.parameters.equal(anchor) else self.parameters.to_numpy(),
            optimizer=self.inner_optimizer.state_dict(),
            position=position,
            tokens=self.tokens,
            rng_state=torch.get_rng_state(),
            cuda_rng_state=torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
            inner_step=self.inner_step,
            earlier_steps=self._earlier_steps,
            usual_sizes=tuple(self._mine.usual.past),
        )
        return Checkpoint(self.state, local, self.swarm.run, self._shared)

    # ---- the loop

    @property
    def inner_steps(self) -> int:
        """Inner steps from the outer step that this peer is at to the next one."""
        return self._inner_steps_at(self.state.step)

    def step(self, tokens: int = 1) -> OuterStep | None:
        """After an inner step on ``tokens`` tokens: makes an outer step when it is time, and returns what came of it.

        It is time after ``inner_steps`` of them, or earlier when the others are about to begin without us. ``tokens``
        is this peer's weight in the mean: give real counts where peers' batches differ.
        """
        if not isinstance(tokens, int) or tokens < 0:
            raise BadInput(f"tokens must be a whole number of at least 0, not {tokens!r}")
        self.inner_step += 1
        self.tokens += tokens
        if self.inner_step < self.inner_steps and not self.swarm.hurry.is_set():
            return None
        return self.outer_step()

    def outer_step(self) -> OuterStep:
        """Average pseudo-gradients with the others and apply the update; whatever fails, no progress is lost.

        Raises PrimeError after three pseudo-gradients in a row that were not finite or exploded.
        """
        now = time.monotonic()
        if self.inner_step:
            self._inner_step_seconds = (now - self._inner_since) / self.inner_step
        self._inner_seconds += now - self._inner_since
        self.catch_up()
        result = self._try_round()
        applying, contributed = time.monotonic(), 0
        if result.group is not None:
            contributed, self.tokens = self.tokens, 0
            self._mine.contributed()
            self._apply(result)
        if result.group is not None or not self.swarm.leaving:  # otherwise this round is made after the restart
            self._earlier_steps = self._earlier_steps + self.inner_step if self.tokens else 0
            self.inner_step = 0
        now = time.monotonic()
        outside = {"apply": now - applying, "total": now - self._committed_at}
        seconds = {"inner": self._inner_seconds, **result.seconds, **outside}
        if result.group is not None:
            self._inner_seconds = 0.0
            self._committed_at, self._pace = now, sum(seconds.values()) - seconds["total"]  # without pauses
        self._begin_inner_steps(expected=self._unfit_rounds == 0)
        return OuterStep(self.state.step, self.state.digest, contributed, result, seconds, self._follower.account())

    def _try_round(self) -> RoundResult:
        try:
            self._mine.take(self.state.anchor, self._earlier_steps + self.inner_step)
        except UnfitPseudoGradient as reason:
            self._roll_back(reason)
            return RoundResult(reason=f"the pseudo-gradient was not fit to be averaged: {reason}")
        self._unfit_rounds = 0
        result = self._make_round()
        for _ in range(CATCH_UPS):
            if result.contributed:
                self._drop_progress()
            moved = result.group is None and not self.swarm.leaving and self.catch_up(ask_everyone=True)
            if result.contributed or not moved:
                break
            # We were behind, now we are not, and our bytes are as good as they were.
            result = self._make_round()
        return result

    def _make_round(self) -> RoundResult:
        step = self.state.step
        self._outer = self.terms.outer_at(step)  # that of this round, whatever is heard before it is over
        return self.swarm.make_round(self._mine.blocks, self._update, self.tokens, self.terms.fingerprint(step))

    def _drop_progress(self) -> None:
        """Go back to the anchor: what was learnt since is of no use, or is with the others already."""
        self.parameters.write(0, self.state.anchor)
        self.tokens = 0

    def _roll_back(self, reason: UnfitPseudoGradient) -> None:
        """Throw the inner steps since the anchor away, and with them what the inner optimizer has kept of them."""
        self._unfit_rounds += 1
        self._drop_progress()
        self.inner_optimizer.state.clear()
        advice = "lower the inner learning rate or clip gradients, and look at this peer's data and device"
        if self._unfit_rounds >= UNFIT_ROUNDS:
            raise PrimeError(
                f"the pseudo-gradient was not fit to be averaged {UNFIT_ROUNDS} times in a row, at last because "
                f"{reason}; {advice}"
            )
        logger.warning(
            "the pseudo-gradient is not fit to be averaged: %s; this peer goes back to the anchor with a fresh inner "
            "optimizer and sits the round out. If that comes again, %s",
            reason,
            advice,
        )
        self.swarm.sit_out()

    def _apply(self, result: RoundResult) -> None:
        assert result.group is not None
        assert result.update is not None
        step, before = self.state.step, self.state.digest
        tokens = result.group.total_weight
        after = self.state.apply(result.update, tokens, self._outer)
        self.parameters.write(0, self.state.anchor)
        entry = JournalEntry(step, before, after, tokens, self.parameters.n, result.update.bits)
        try:
            self.journal.append(entry, result.update)
        except OSError as error:  # others have the update too
            logger.warning("the update of outer step %d is not in the journal: %s", self.state.step, error)
        self.swarm.note_commit(result, self.state.step, after, self.state.tokens)

    def _begin_inner_steps(self, expected: bool) -> None:
        """Hold the state we have, and say when we expect to have done the next inner steps."""
        self._inner_since = time.monotonic()
        ready_at = clock.now() + self._inner_step_seconds * self.inner_steps if self._inner_step_seconds else 0.0
        self._hold(expected=expected, ready_at=ready_at, pace=self._pace, state="training")

    def _hold(self, **changes: Any) -> None:
        state, terms = self.state, self.terms.fingerprint(self.state.step)
        self.swarm.hold(state.step, state.digest, state.tokens, terms=terms, **changes)

    @contextmanager
    def outside_inner_steps(self) -> Iterator[None]:
        """Time spent in here (to evaluate, to save) does not count as inner steps."""
        self._inner_seconds += time.monotonic() - self._inner_since
        try:
            yield
        finally:
            self._inner_since = time.monotonic()

    # ---- joining and catching up

    def _join(self, options: DiLoCoOptions, directory: Path) -> None:
        resumed = options.resume is not None or self.state.step > 0  # the latter from the journal alone
        may_start = self.swarm.founder if options.may_start is None else options.may_start
        swarm, stall = self.swarm, self.swarm.options.policy.stall_timeout
        journal, serving = self.journal, options.serving
        source = Source(lambda: self.state if self._joined else None, journal, self._shared, directory, serving)
        server = StateServer(swarm.node, swarm.run, source, stall)
        swarm.call(server.serve())
        keep_certificates(swarm, directory, lambda: self.state.step)
        swarm.enter(description_hash(self._shared))
        client, standing = StateClient(swarm.node, swarm.run, stall), Standing()
        snapshots = Snapshots(client, server.shelf, swarm.fellows, standing)
        means = Means(client, snapshots, standing, journal, directory, options.watch)
        self._follower = Follower(swarm, means, self.terms)
        self._follower.check_agreement(self._shared)
        fetched = None if resumed else self._follower.state_of_the_run(self.state, self._fill, may_start)
        if fetched is not None:
            self.state = fetched
            self.parameters.write(0, fetched.anchor)
        self._joined = True
        self._begin_inner_steps(expected=fetched is None or fetched.step == 0)
        if resumed:
            self.catch_up()
        self.joined_by = self._follower.done
        """How this peer came to the state of the others when it joined."""

    def _fill(self, anchor: Float32, momentum: Float32) -> None:
        """The initial state: the parameters are what they were."""
        self.parameters.read(0, anchor)
        momentum.fill(0.0)

    def catch_up(self, ask_everyone: bool = False) -> bool:
        """Move to the state that others hold where it is better than ours, and keep our local progress.

        The updates we missed are replayed from a journal where one leads from our state to theirs; otherwise a snapshot
        replaces ours. Heartbeats may be old: ``ask_everyone`` asks all peers for updates that lead on from our state,
        whatever they announce. Returns whether we moved.
        """
        lineage = self.swarm.best_lineage()
        peers = self.swarm.others().keys() if ask_everyone else () if lineage is None else lineage.peers
        before = self.state.digest
        with self._keeping_progress() as moving:
            self.state = self._follower.follow(self.state, peers, lineage, moving)
        if self.state.digest == before:
            return False
        self._hold()
        return True

    @contextmanager
    def _keeping_progress(self) -> Iterator[Callable[[], None]]:
        """Gives what is to be called before our state changes: the local progress is then on top of the new one."""
        moving = False

        def begin() -> None:
            nonlocal moving
            if not moving:  # what the parameters hold from now on is our progress alone
                self.parameters.add(self.state.anchor, -1.0)
            moving = True

        try:
            yield begin
        finally:
            if moving:
                self.parameters.add(self.state.anchor, 1.0)
