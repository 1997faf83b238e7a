"""What one peer reads: its text, its place in it, the batches it trains on, and an account of them in its folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from prime_p2p.diloco import DiLoCo
from prime_p2p.long_work import Watch, unwatched
from prime_p2p.monitor.samples import Samples, SamplesLog, Stream
from prime_p2p.recipe import Recipe
from prime_p2p.training.batch import Batch
from prime_p2p.training.data.assignment import Place
from prime_p2p.training.data.corpus import CACHE, Corpus, Places
from prime_p2p.training.data.reading import Reading, order_of
from prime_p2p.training.data.sampling import validation_sequences
from prime_p2p.training.data.tokenizer import KEPT, tokenizer_of
from prime_p2p.training.model import check_vocabulary, config_of


class Reader:
    """Reads the text of a recipe for a peer; while it is entered, a thread makes batches ahead.

    Attributes:
        validation: What is evaluated on, the same on all peers with the same text; int64 [n, context + 1].
        drawn: Batches read since the peer first began: its position, for a checkpoint.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: Path,
        directory: Path,
        peer_id: str,
        say: Callable[[str], None],
        watch: Watch = unwatched,
    ) -> None:
        """Have all there is to read at hand, which takes long where it has to be tokenised.

        Relative paths of the recipe begin in ``data``; what the peer keeps is in ``directory``. Raises BadInput.
        """
        self._recipe = recipe
        self._directory = directory
        self.tokenizer = tokenizer_of(recipe.data, data)
        check_vocabulary(config_of(recipe.model), self.tokenizer.size)
        text = Corpus.load(recipe.data, Places(data, directory / CACHE), self.tokenizer, say, watch)
        seed, sequences, context = recipe.run.seed, recipe.eval.sequences, recipe.model.context
        self.validation = validation_sequences(text.validation, seed, sequences, context)
        order = order_of(recipe, text, peer_id)
        self._stream = Stream(recipe.data.order, text.fingerprint, order.sequences)
        self._reading = Reading(order, say)
        self._samples = SamplesLog(directory)
        self._stack = ExitStack()

    @property
    def drawn(self) -> int:
        return self._reading.drawn

    @drawn.setter
    def drawn(self, batches: int) -> None:
        self._reading.drawn = batches

    def keep_tokenizer(self) -> None:
        """Keep in the peer's folder what its checkpoints are exported with. Raises OSError."""
        self.tokenizer.keep(self._directory / KEPT)

    def next(self, diloco: DiLoCo) -> Batch:
        """The batch of the next inner step. Raises GivenUp."""
        return self._reading.next(self._place(diloco))

    def give_up(self) -> None:
        """Have ``next`` wait for nothing any more; may be called from a signal handler."""
        self._reading.give_up()

    def note(self, diloco: DiLoCo, group: Sequence[str] = ()) -> None:
        """Account for what was read since the last time; ``group`` has just made the outer step that we are at."""
        state, ranges = diloco.state, self._reading.take_ranges()
        front = state.tokens // self._recipe.model.context
        self._samples.append(Samples(self._stream, state.step, state.digest.hex(), group, front, ranges))

    def _place(self, diloco: DiLoCo) -> Place:
        state, context = diloco.state, self._recipe.model.context
        return Place(
            contributed=state.tokens // context,
            step=state.step,
            group=self._samples.group_of(state.digest),
            share=diloco.inner_steps * self._recipe.inner.batch_size,
            read=diloco.tokens // context,
        )

    def __enter__(self) -> Reader:
        self._stack.enter_context(self._samples)
        self._stack.enter_context(self._reading)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
