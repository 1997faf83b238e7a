"""What a peer of a public run may choose for itself, and what its author has chosen for all."""

from __future__ import annotations

from pathlib import Path

import pytest
from public_runs import author, signed

from prime_p2p.errors import BadInput
from prime_p2p.public.public_run import PublicRun


def test_a_peer_of_a_public_run_chooses_what_is_its_own_and_goes_by_the_authors_changes(tmp_path: Path) -> None:
    changes = [{"at": 7, "values": {"inner.learning_rate": 0.5}, "phase": "train"}]
    run = signed(author(tmp_path), changes=changes)
    terms = PublicRun(run, tmp_path, None, ["logging.tensorboard=here", "device.compile=true"]).terms
    for step in (0, 7):
        assert terms.recipe_at(step).logging.tensorboard == "here"
        assert terms.recipe_at(step).device.compile is True
        assert terms.fingerprint(step) == run.manifest.terms.fingerprint(step)
    assert terms.recipe_at(7).inner.learning_rate == 0.5


@pytest.mark.parametrize("value", ["inner.learning_rate=0.5", "model.layers=3", "data.source=elsewhere"])
def test_what_all_peers_must_agree_on_is_not_for_one_to_choose(value: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"--set {value}: is for the author"):
        PublicRun(signed(author(tmp_path)), tmp_path, None, [value])


def test_a_value_that_is_none_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="loging"):
        PublicRun(signed(author(tmp_path)), tmp_path, None, ["loging.wandb=x"])
