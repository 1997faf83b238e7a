"""An audit of a peer's folder: every checkpoint is read, and the outer steps of the journal are made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prime_p2p.errors import BadInput
from prime_p2p.long_work import Watch, unwatched
from prime_p2p.outer.journal import JournalEntry, read_update, update_files
from prime_p2p.outer.nesterov import OuterOptimizer
from prime_p2p.outer.state import OuterState
from prime_p2p.outer.terms import OuterTerms, Unchanging
from prime_p2p.recipe import Recipe
from prime_p2p.state import checkpoint as files
from prime_p2p.state.checkpoint import Checkpoint
from prime_p2p.state.checkpoints import of_peer
from prime_p2p.terms import Terms
from prime_p2p.training import model as models
from prime_p2p.training.flat import FlatParameters


@dataclass(frozen=True)
class Known:
    """A state that was found whole, and how to get it."""

    name: str
    step: int
    digest: bytes
    load: Callable[[], OuterState]


class Audit:
    """Checks a peer's folder without changing it. ``found`` gets a line for each thing that is as it should be,
    ``wrong`` one for each that is not, both in the order of the outer steps. ``terms`` are those of a run whose author
    may change them; without them they are those of the checkpoints. Nothing is told while ``watch`` watches."""

    def __init__(
        self,
        folder: Path,
        found: Callable[[str], None],
        wrong: Callable[[str], None],
        terms: OuterTerms | None = None,
        watch: Watch = unwatched,
    ) -> None:
        self._folder = folder
        self._terms = terms
        self._found = found
        self._wrong = wrong
        self._watch = watch
        self._description: dict[str, Any] = {}

    def run(self) -> None:
        """Check the checkpoints, then the journal.

        Raises BadInput where the folder has no checkpoint, or those of a newer version of this program.
        """
        folders = of_peer(self._folder).folders()
        states = [state for state in map(self._checkpoint, folders) if state is not None]
        entries = self._journal()
        if not entries:
            self._found("journal: empty")
            return
        if states and entries[0].step_before == 0:
            states += self._initial()
        self._make_again(sorted(states, key=lambda state: state.step), entries)

    def _checkpoint(self, folder: Path) -> Known | None:
        checkpoint = self._read(folder)
        if checkpoint is None:
            return None
        outer = checkpoint.outer
        self._description = checkpoint.description
        self._found(f"checkpoint {folder.name}: whole, its digest is {_short(outer.digest)}")
        return Known(f"checkpoint {folder.name}", outer.step, outer.digest, lambda: files.read(folder, 1).outer)

    def _read(self, folder: Path) -> Checkpoint | None:
        try:
            with self._watch(f"reading checkpoint {folder.name}", unit=""):
                return files.read(folder, 1)
        except files.DAMAGED as error:
            self._wrong(f"checkpoint {folder.name}: {' '.join(str(error).split())}")
            return None

    def _initial(self) -> list[Known]:
        """The state the run began with, where the recipe alone tells it."""
        recipe = self._recipe()
        if recipe is None or recipe.model.weights == "given":
            return []

        def build() -> OuterState:
            return OuterState.initial(FlatParameters(models.build(recipe.model, recipe.run.seed)).to_numpy())

        try:
            return [Known("the model the recipe begins with", 0, build().digest, build)]
        except BadInput:  # weights that were given
            return []

    def _recipe(self) -> Recipe | None:
        """That of the checkpoints; None for somebody's own training loop."""
        try:
            return Recipe.from_shared(self._description)
        except BadInput:
            return None

    def _terms_described(self) -> OuterTerms:
        """The terms of the checkpoints."""
        recipe = self._recipe()
        return Terms(recipe) if recipe else Unchanging(OuterOptimizer(**self._description.get("outer", {})))

    def _journal(self) -> list[JournalEntry]:
        """The updates that are whole, oldest first."""
        entries = []
        for path in update_files(self._folder / "journal"):
            try:
                entries.append(read_update(path)[0])
            except (OSError, ValueError) as error:
                self._wrong(f"journal: {path.name}: {error}")
        return entries

    def _make_again(self, states: Sequence[Known], entries: Sequence[JournalEntry]) -> None:
        reached = 0
        made: set[int] = set()
        by_step = {entry.step_before: entry for entry in entries}
        for known in states:
            entry = by_step.get(known.step)
            if known.step < reached or entry is None or entry.digest_before != known.digest:
                continue
            reached = self._replay(known, by_step, states)
            made.update(range(known.step, reached))
        left = [entry.step_before + 1 for entry in entries if entry.step_before not in made]
        if left:
            self._found(f"journal: {_named(left)} whole, but not made again: no whole checkpoint leads on to there")

    def _replay(self, known: Known, by_step: dict[int, JournalEntry], states: Sequence[Known]) -> int:
        """Make the outer steps again that lead on from a state, up to the first mismatch; returns how far that is."""
        state, terms = known.load(), self._terms or self._terms_described()
        confirmed = known.step
        problem = None
        to_come = sum(step >= known.step for step in by_step)
        with self._watch(f"making outer steps again from {known.name}", to_come, "outer steps") as advance:
            while problem is None and state.step in by_step:
                entry = by_step[state.step]
                problem = self._step(state, entry, terms.outer_at(state.step)) or _other_history(state, states)
                confirmed += problem is None
                advance(1)
        if confirmed > known.step:
            self._found(
                f"journal: outer steps {known.step + 1} to {confirmed} made again from {known.name}, "
                "every digest confirmed"
            )
        if problem is not None:
            self._wrong(f"journal: outer step {confirmed + 1}: {problem}")
        return max(confirmed, state.step)

    def _step(self, state: OuterState, entry: JournalEntry, outer: OuterOptimizer) -> str | None:
        """Make one outer step; returns what is wrong with it."""
        if entry.digest_before != state.digest:
            return f"its update is for the state {_short(entry.digest_before)}, not for {_short(state.digest)}"
        path = self._folder / "journal" / f"{state.step:012d}.update"
        try:
            _, update = read_update(path)
            state.apply(update, entry.tokens, outer)
        except (OSError, ValueError) as error:
            return str(error)
        if entry.digest_after != state.digest:
            return f"its update leads to {_short(state.digest)}, not to {_short(entry.digest_after)} as it says"
        return None


def _other_history(state: OuterState, states: Sequence[Known]) -> str | None:
    """Which of the known states at this outer step is another one."""
    for known in states:
        if known.step == state.step and known.digest != state.digest:
            return f"its update leads to {_short(state.digest)}, {known.name} has {_short(known.digest)}"
    return None


def _short(digest: bytes) -> str:
    return digest.hex()[:16]


def _named(steps: Sequence[int]) -> str:
    if len(steps) == 1:
        return f"the update of outer step {steps[0]} is"
    return f"{len(steps)} updates of outer steps {steps[0]} to {steps[-1]} are"
