from __future__ import annotations

import pytest

from prime_p2p.errors import BadInput
from prime_p2p.recipe import InnerRecipe
from prime_p2p.training.ranks.launch import Launch

BY_TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "RANK": "3"}


@pytest.mark.parametrize("devices", [0, 1])
def test_a_peer_has_one_rank_unless_more_are_asked_for(devices: int) -> None:
    assert Launch.of(devices, {}) == Launch(1, 0)


def test_a_process_that_torchrun_started_is_the_rank_it_was_started_as() -> None:
    assert Launch.of(0, BY_TORCHRUN) == Launch(4, 3, by_torchrun=True)
    assert Launch.of(4, BY_TORCHRUN) == Launch(4, 3, by_torchrun=True)


def test_devices_must_be_as_many_as_torchrun_has_started() -> None:
    with pytest.raises(BadInput, match=r"^--devices 2: torchrun has started 4 ranks"):
        Launch.of(2, BY_TORCHRUN)


def test_the_ranks_of_a_peer_are_on_one_machine() -> None:
    with pytest.raises(BadInput, match="start a peer on each machine"):
        Launch.of(0, BY_TORCHRUN | {"LOCAL_WORLD_SIZE": "2"})


def test_a_batch_that_the_ranks_cannot_share_is_refused() -> None:
    Launch(4).check(InnerRecipe(learning_rate=1e-3, batch_size=12))
    with pytest.raises(BadInput, match=r"^inner.batch_size = 10 cannot be shared equally by 4 devices"):
        Launch(4).check(InnerRecipe(learning_rate=1e-3, batch_size=10))


def test_an_optimizer_that_cannot_be_sharded_is_refused() -> None:
    inner = InnerRecipe(learning_rate=1e-3, batch_size=4, optimizer="adamw8bit")
    Launch(1).check(inner)
    with pytest.raises(BadInput, match="is for peers of one device"):
        Launch(2).check(inner)
