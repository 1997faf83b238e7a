"""What an author's wish makes of a run's manifest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from public_runs import TINY, author, manifest

from prime_p2p.errors import BadInput
from prime_p2p.public.manifest import Manifest, SignedManifest
from prime_p2p.public.publish import NOTICE, NOTICE_SECONDS, Progress, Wish, expiry, first, following
from prime_p2p.recipe import Recipe
from prime_p2p.terms import recipe_with

RUNNING = Progress(step=10, pace=60.0)


def recipe(**values: Any) -> Recipe:
    return recipe_with(Recipe.load(TINY), {key.replace("__", "."): value for key, value in values.items()})


@pytest.fixture
def before(tmp_path: Path) -> Manifest:
    return manifest(author(tmp_path), recipe=recipe(run__start="anyone").model_dump(mode="json"))


def test_the_first_manifest_has_the_recipe_under_the_name_that_was_given(tmp_path: Path) -> None:
    by = author(tmp_path)
    made = first("other-name", by, Wish(recipe(), rule="token", bootstraps=["/ip4/1.2.3.4/tcp/1"]), bytes(32))
    assert made.terms.base.run.name == "other-name"
    assert made.terms.base.run.start == "anyone"
    assert (made.sequence, made.admission.rule, made.bootstraps) == (1, "token", ["/ip4/1.2.3.4/tcp/1"])
    assert SignedManifest.sign(made, by).manifest == made


def test_a_change_comes_late_enough_for_every_peer_to_hear_of_it(before: Manifest) -> None:
    wish = Wish(recipe(inner__learning_rate=0.5))
    (slow,) = following(before, wish, RUNNING).changes
    assert (slow.at, slow.values) == (RUNNING.step + NOTICE, {"inner.learning_rate": 0.5})
    (fast,) = following(before, wish, replace(RUNNING, pace=0.5)).changes
    assert fast.at == RUNNING.step + 2 * NOTICE_SECONDS
    with pytest.raises(BadInput, match=f"give {RUNNING.step + NOTICE} or more"):
        following(before, replace(wish, at=RUNNING.step + 1), RUNNING)
    (named,) = following(before, replace(wish, at=99), RUNNING).changes
    assert named.at == 99


def test_the_same_recipe_again_changes_nothing_but_the_sequence(before: Manifest) -> None:
    after = following(before, Wish(recipe()), RUNNING)
    assert (after.changes, after.sequence) == ([], 2)


def test_a_pause_ends_where_everybody_waits(before: Manifest) -> None:
    paused = following(before, Wish(phase="pause"), RUNNING)
    at = paused.changes[-1].at
    assert [paused.terms.phase_at(step) for step in (at - 1, at)] == ["train", "pause"]
    again = following(paused, Wish(phase="train"), Progress(at))
    assert again.changes[-1].at == at
    assert again.terms.phase_at(at) == "train"
    assert again.terms.phase_at(at + 5) == "train"


def test_a_change_of_the_recipe_does_not_end_a_pause(before: Manifest) -> None:
    paused = following(before, Wish(phase="pause"), RUNNING)
    at = paused.changes[-1].at
    changed = following(paused, Wish(recipe(outer__momentum=0.1)), Progress(at))
    assert changed.terms.phase_at(at) == "pause"
    assert changed.terms.outer_at(at).momentum == 0.1


def test_two_changes_in_a_row_both_hold(before: Manifest) -> None:
    one = following(before, Wish(recipe(inner__learning_rate=0.5), at=50), RUNNING)
    two = following(one, Wish(recipe(inner__learning_rate=0.5, inner__clip=3.0)), RUNNING)
    assert [change.at for change in two.changes] == [50, 50]
    assert two.terms.recipe_at(50).inner.clip == 3.0
    assert two.terms.recipe_at(50).inner.learning_rate == 0.5
    assert two.terms.recipe_at(49).inner.clip == 1.0


@pytest.mark.parametrize("values", [{"model.layers": 3}, {"round.codec": "int4"}, {"data.source": "/elsewhere"}])
def test_what_would_be_another_run_is_refused_and_named(values: dict[str, Any], before: Manifest) -> None:
    wish = Wish(recipe_with(recipe(), values))
    with pytest.raises(BadInput, match=f"(?s)another name.*{next(iter(values))}"):
        following(before, wish, RUNNING)


def test_lists_of_peers_grow_and_shrink(before: Manifest) -> None:
    one = following(before, Wish(rule="allow", admit=["12D3KooWa", "12D3KooWb"], ban=["12D3KooWc"]), RUNNING)
    assert one.admission.peers == ["12D3KooWa", "12D3KooWb"]
    two = following(one, Wish(admit=["12D3KooWb"], dismiss=["12D3KooWa"], pardon=["12D3KooWc"]), RUNNING)
    assert (two.admission.rule, two.admission.peers, two.admission.banned) == ("allow", ["12D3KooWb"], [])
    assert two.changes == []


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "0h", "1w", "nand", "1e9d", "infd"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="90m, 12h or 7d"):
        expiry(text)


def test_times_are_minutes_hours_and_days() -> None:
    assert round(expiry("12h") - expiry("30m")) == 11.5 * 3600
    assert round(expiry("7d") - expiry("1d")) == 6 * 86400
