"""What one peer reads: its batches, one after the other, with an account of them."""

from __future__ import annotations

from collections.abc import Callable

from prime_p2p.recipe import Recipe
from prime_p2p.training.batch import Batch
from prime_p2p.training.data.assignment import Place
from prime_p2p.training.data.corpus import Corpus
from prime_p2p.training.data.prefetch import Prefetch
from prime_p2p.training.data.sampling import Order, Sampler, SharedOrder, Windows


class Reading:
    """Reads in an order, while it is entered: then it owns a thread that reads ahead.

    ``drawn`` batches have been read since the peer first began.
    """

    def __init__(self, order: Order, say: Callable[[str], None]) -> None:
        self.drawn = 0
        self._order = order
        self._ranges: list[list[int]] = []
        self._ahead = Prefetch(order.at, order.batch_size, say)

    def next(self, place: Place) -> Batch:
        """The batch of the next inner step, for a peer that is at ``place``. Raises GivenUp."""
        position = self._order.position(place, self.drawn)
        batch = self._ahead.get(position)
        self.drawn += 1
        after = position + self._order.batch_size
        if self._ranges and self._ranges[-1][1] == position:
            self._ranges[-1][1] = after
        else:
            self._ranges.append([position, after])
        return batch

    def give_up(self) -> None:
        """Have ``next`` wait no more, see ``Prefetch.give_up``."""
        self._ahead.give_up()

    def take_ranges(self) -> list[list[int]]:
        """The positions read since the last call: the first of each range, and the one after its last."""
        taken, self._ranges = self._ranges, []
        return taken

    def __enter__(self) -> Reading:
        self._ahead.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ahead.close()


def order_of(recipe: Recipe, corpus: Corpus, peer_id: str) -> Order:
    """The order in which a peer reads a corpus. Raises BadInput where there is not enough for one sequence."""
    seed, size, context = recipe.run.seed, recipe.inner.batch_size, recipe.model.context
    ends = corpus.train_documents.ends if recipe.data.packing == "documents" else None
    if recipe.data.order == "random":
        return Sampler(corpus.train, seed, peer_id, size, context, ends)
    return SharedOrder(Windows(corpus.train, context, ends), seed, peer_id, size)
