"""Outer steps that are in a peer's own journal and not in its checkpoint: a sudden end leaves some."""

from __future__ import annotations

import logging

from prime_p2p.errors import BadInput
from prime_p2p.long_work import Watch, unwatched
from prime_p2p.outer.journal import Journal
from prime_p2p.outer.state import OuterState
from prime_p2p.outer.terms import OuterTerms

logger = logging.getLogger(__name__)


def replay(state: OuterState, journal: Journal, terms: OuterTerms, watch: Watch = unwatched) -> None:
    """Make the outer steps again that ``journal`` has from ``state`` on, in place, as far as its updates are whole.

    Raises BadInput where one does not lead where it says; ``state`` is of no more use then.
    """
    path = journal.path_from(state.step, state.digest)
    with watch("making the outer steps of the journal again", len(path), "outer steps") as advance:
        for entry in path:
            try:
                _, update = journal.read(entry.step_before)
            except (KeyError, OSError) as error:
                logger.warning("the update of outer step %d cannot be read: %s", entry.step_before + 1, error)
                return
            if state.apply(update, entry.tokens, terms.outer_at(state.step)) != entry.digest_after:
                raise BadInput(
                    f"the journal's update of outer step {state.step} does not lead where it says; remove the journal "
                    "folder of this peer, and the others give it what it missed"
                )
            advance(1)
