"""Work that takes long says how far it is; whoever watches decides how that is shown (``monitor/bars.py``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

Advance = Callable[[int], None]
"""To be called, from any thread, with how much more of the work is done."""


class Watch(Protocol):
    def __call__(
        self, what: str, total: int | None = None, unit: str = "bytes", *, aside: bool = False
    ) -> AbstractContextManager[Advance]:
        """Watch a piece of work as long as the context is entered, for as much as ``total``, where that is known.

        ``unit`` is what is counted; empty for work of which only the time is known. It is ``aside`` where something
        else goes on meanwhile.
        """
        ...


def ignore(count: int) -> None:
    """Nobody watches."""


@contextmanager
def unwatched(what: str, total: int | None = None, unit: str = "bytes", *, aside: bool = False) -> Iterator[Advance]:
    """A ``Watch`` that shows nothing."""
    yield ignore
