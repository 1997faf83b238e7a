"""The life of a peer: join the run, then inner steps, a round, an outer step, again and again, until told to leave.

``diloco.step`` is where peers meet: it gathers a group, averages and applies the update (``diloco.py``, and below it
``swarm/rounds.py``). The words, from anchor to update, are in ``docs/architecture.md``.
"""

from __future__ import annotations

import math
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path

from prime_p2p.diloco import DiLoCo, DiLoCoOptions, OuterStep
from prime_p2p.errors import BadInput, PrimeError
from prime_p2p.lifetime import StopSignals
from prime_p2p.long_work import unwatched
from prime_p2p.news import News
from prime_p2p.reader import Reader
from prime_p2p.recipe import Recipe
from prime_p2p.state.checkpoints import Checkpoints
from prime_p2p.state.follow import Diverged
from prime_p2p.state.saver import Saver
from prime_p2p.state.transfer import ServingLimits
from prime_p2p.swarm.swarm import Leaving, Swarm
from prime_p2p.terms import Course
from prime_p2p.training.data.prefetch import GivenUp
from prime_p2p.training.ranks.crew import RankLost
from prime_p2p.training.ranks.trainer import ShardedTrainer
from prime_p2p.training.trainer import Trainer

START_TOGETHER = 60.0  # seconds that a new run waits for ``round.start_with`` peers
PAUSE = 1.0  # seconds between two looks at whether a paused run goes on, or a signal has come
LAST_ONES = 5.0  # seconds that a peer at the end of the run stays for those who are still on their way


class Peer:
    """One peer of a run: its model, its data, and the loop that trains them."""

    def __init__(
        self,
        course: Course,
        directory: Path,
        trainer_of: Callable[[Recipe, Path], Trainer | ShardedTrainer],
        swarm: Swarm,
        news: News,
    ) -> None:
        """Build everything, and join with the state on this peer's own disk, or else with the state that others hold.

        Raises BadInput where the data, a checkpoint or the run of the others does not fit the recipe.
        """
        self.terms = course.terms
        self.recipe = recipe = course.terms.base
        self.swarm = swarm
        self.news = news
        self.reader = Reader(recipe, course.data_folder, directory, swarm.peer_id, news.reporter.log, news.watch)
        with news.watch("building the model", unit=""):
            self.trainer = trainer_of(recipe, course.data_folder)
        self.compiles = self.trainer.compiles  # in the next inner step
        self.checkpoints = Checkpoints(directory / "checkpoints", recipe.checkpoint.keep)
        self.saver = Saver(self.checkpoints, news.reporter.log, news.watch)
        self.paused_at: int | None = None  # the outer step at which the run is paused
        self.losses: list[float] = []  # of the inner steps since the last commit
        swarm.on_phase = news.phase
        self.diloco = self._join(directory, course.initial_digest)
        self.reader.keep_tokenizer()

    def _join(self, directory: Path, initial_digest: bytes | None) -> DiLoCo:
        with self.news.watch("reading the newest checkpoint", unit=""):
            saved = self.checkpoints.load_newest()
        saved_at = saved.outer.step if saved else 0
        description = self.recipe.shared()
        description["data"]["tokenizer_hash"] = self.reader.tokenizer.hash
        options = DiLoCoOptions(
            directory / "journal",
            journal_keep=self.recipe.checkpoint.every,  # so that it leads on from the newest checkpoint
            description=description,
            resume=saved,
            explosion_factor=self.recipe.round.explosion_factor,
            serving=ServingLimits(self.recipe.serving.rate, self.recipe.serving.at_once),
            may_start=self.recipe.run.start == "anyone",
            codec=self.recipe.round.codec,
            initial_digest=initial_digest,
            watch=self.news.watch,
        )
        try:
            inner_steps, trainer = self.recipe.round.inner_steps_at, self.trainer
            diloco = DiLoCo(trainer.parameters, trainer.optimizer, self.swarm, inner_steps, self.terms, options)
        except OSError as error:
            raise BadInput(f"folder {directory} cannot be used: {error}") from None
        if saved is not None:
            before = self.recipe.round.inner_steps_before
            missed = max(0, before(diloco.state.step) - before(saved_at))
            self.reader.drawn = saved.local.position + missed  # those of outer steps that were made since are not new
            self.news.reporter.note(f"resumed from {directory}, at outer step {saved_at} when it was saved")
        self.news.joined(diloco)
        others = self.recipe.round.start_with - 1
        # A run that was stopped as a whole is to go on from the newest state that anybody kept.
        patience = min(self.recipe.round.patience, START_TOGETHER) if diloco.state.step else START_TOGETHER
        if (saved or not diloco.state.step) and not self.swarm.wait_for_peers(others, patience):
            self.news.reporter.log(f"not even {others} other peers after {patience:.0f} s; starting all the same")
        return diloco

    def leave(self) -> None:
        """From a signal handler: let go of whatever is waited for."""
        self.swarm.hold_no_more()
        self.reader.give_up()

    def train(self, signals: StopSignals) -> None:
        """Train until the run's last outer step or until a signal comes, then save and leave."""
        with self.reader:
            try:
                self._train(signals)
                last = self.diloco.checkpoint(self.reader.drawn)
            except (Diverged, RankLost):  # this state is of no use to anybody, or is not whole any more
                self.saver.finish()
                raise
            except PrimeError:
                self.saver.save_if_possible(self.diloco.checkpoint(self.reader.drawn))
                raise
            self.saver.save(last)
            self.reader.note(self.diloco)
        hint = "; the same command goes on from there" if self.diloco.state.step < self.goal else ""
        self.news.reporter.note(f"saved at outer step {self.diloco.state.step}{hint}")
        if signals.first is None:
            goal = self.diloco.state.step
            self.swarm.wait_for(lambda others: all(beat.step >= goal for beat in others.values()), LAST_ONES)
            self.news.reporter.done(self.diloco.state.step, self.diloco.state.digest)

    def _train(self, signals: StopSignals) -> None:
        try:
            if self.diloco.inner_step >= self.diloco.inner_steps:  # the round that a signal came into
                self.after_outer_step(self.diloco.outer_step())
            while signals.first is None and self.diloco.state.step < self.goal:
                if self.waits_for_the_author():
                    continue
                self.inner_step()
                outcome = self.diloco.step(tokens=self.recipe.inner.batch_size * self.recipe.model.context)
                if outcome is not None:
                    self.after_outer_step(outcome)
        except Leaving:
            self.news.reporter.log("told to stop in the middle of a transfer")
        except GivenUp as reason:
            self.news.reporter.log(str(reason))

    @property
    def goal(self) -> float:
        """The outer step at which the run ends, as far as is known."""
        step = self.diloco.state.step
        return step if self.terms.phase_at(step) == "end" else self.terms.recipe_at(step).run.outer_steps or math.inf

    def waits_for_the_author(self) -> bool:
        """Whether the run is paused: then wait for a moment. Raises BadInput where this peer is to leave it."""
        if self.terms.refusal is not None:
            raise self.terms.refusal
        step = self.diloco.state.step
        if self.terms.phase_at(step) != "pause":
            if self.paused_at is not None:
                self.paused_at = None
                self.news.phase("training", 0)
            return False
        if self.paused_at != step:
            self.paused_at = step
            self.swarm.sit_out(state="paused")
            self.news.phase("paused", 0)
            self.news.reporter.log(f"the author of the run has paused it at outer step {step}; waiting")
        with self.diloco.outside_inner_steps(), self.terms.changed:
            self.terms.changed.wait(PAUSE)
        return True

    def inner_step(self) -> None:
        """One step of the inner optimizer on this peer's own next batch."""
        started = time.monotonic()
        batch = self.reader.next(self.diloco)
        inner = self.terms.recipe_at(self.diloco.state.step).inner
        watch = self.news.watch if self.compiles else unwatched
        self.compiles = False
        with watch("compiling the model", unit=""):
            self.losses.append(self.trainer.step(batch, inner, self.global_step))
        self.news.inner_step(self.diloco, self.losses[-1], batch.targets / (time.monotonic() - started))

    @property
    def global_step(self) -> int:
        """Inner steps since the run began, for the learning rate: the same for a late joiner as for the first peer."""
        return self.recipe.round.inner_steps_before(self.diloco.state.step) + self.diloco.inner_step

    def after_outer_step(self, outcome: OuterStep) -> None:
        """Report the outer step; evaluate the anchor where it is our turn; save where it is time."""
        self.saver.poll()
        self.reader.note(self.diloco, () if outcome.round.group is None else outcome.round.group.peer_ids)
        if not outcome.committed:
            if not self.swarm.leaving:  # otherwise the round is made after the restart
                self.news.missed(outcome)
            return
        with self.diloco.outside_inner_steps():
            loss = sum(self.losses) / len(self.losses) if self.losses else math.nan  # none since a restart
            self.news.outer_step(outcome, loss, self._evaluate(outcome))
            every = self.recipe.checkpoint.every
            if every and outcome.outer_step % every == 0:
                self.saver.begin(self.diloco.checkpoint(self.reader.drawn))
        self.losses.clear()

    def _evaluate(self, outcome: OuterStep) -> float | None:
        """The validation loss of the anchor, which the parameters now equal; the peers of a group take turns."""
        every, group = self.recipe.eval.every, outcome.round.group
        if group is None or not every or outcome.outer_step % every:
            return None
        peers = sorted(group.peer_ids)
        turn = peers[outcome.outer_step // every % len(peers)]
        return self.trainer.validation_loss(self.reader.validation) if turn == self.swarm.peer_id else None


if __name__ == "__main__":  # as torchrun starts it
    sys.argv.insert(1, "peer")
    runpy.run_module("prime_p2p.cli", run_name="__main__")
