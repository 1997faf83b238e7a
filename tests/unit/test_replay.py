"""A peer goes on from its checkpoint with the outer steps that its own journal has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peer_folders import Made, make, small_recipe

from prime_p2p.errors import BadInput
from prime_p2p.long_work import Watch, unwatched
from prime_p2p.outer.journal import Journal
from prime_p2p.outer.nesterov import OuterOptimizer
from prime_p2p.outer.state import OuterState
from prime_p2p.outer.terms import Unchanging
from prime_p2p.state.checkpoints import of_peer
from prime_p2p.state.replay import replay


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return make(tmp_path, 6, saved=(2,))


def replayed(made: Made, outer: OuterOptimizer | None = None, watch: Watch = unwatched) -> OuterState:
    checkpoint = of_peer(made.folder).load_newest()
    assert checkpoint is not None
    recipe = small_recipe().outer
    replay(
        checkpoint.outer,
        Journal(made.folder / "journal", 100),
        Unchanging(outer or OuterOptimizer(recipe.learning_rate, recipe.momentum)),
        watch,
    )
    return checkpoint.outer


def test_it_comes_to_the_last_outer_step_in_the_same_bytes(made: Made) -> None:
    state = replayed(made)
    assert (state.step, state.digest) == (6, made.digests[6])
    assert np.array_equal(state.anchor, made.anchor)


def test_each_outer_step_is_told_to_who_watches(made: Made, watched: Any) -> None:
    replayed(made, watch=watched)
    (work,) = watched.works
    assert (work.total, work.done, work.unit) == (4, 4, "outer steps")


def test_a_damaged_update_ends_it_in_a_whole_state(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    path = made.folder / "journal" / f"{4:012d}.update"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    state = replayed(made)
    assert (state.step, state.digest) == (4, made.digests[4])
    assert "outer step 5 cannot be read" in caplog.text


def test_a_journal_of_another_history_changes_nothing(made: Made, tmp_path: Path) -> None:
    other = make(tmp_path / "other", 6, saved=(), seed=2)
    checkpoint = of_peer(made.folder).load_newest()
    assert checkpoint is not None
    replay(checkpoint.outer, Journal(other.folder / "journal", 100), Unchanging(OuterOptimizer()))
    assert (checkpoint.outer.step, checkpoint.outer.digest) == (2, made.digests[2])


def test_an_update_that_leads_elsewhere_is_refused_with_what_to_do(made: Made) -> None:
    with pytest.raises(BadInput, match="update of outer step 3 does not lead where it says; remove the journal folder"):
        replayed(made, OuterOptimizer(learning_rate=0.1))
