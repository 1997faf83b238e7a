"""What an author's wish makes of a run's manifest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from public_runs import TINY, author, manifest

from prime_p2p.errors import BadInput
from prime_p2p.public import notice
from prime_p2p.public.manifest import Manifest, SignedManifest, check_signable
from prime_p2p.public.publish import Progress, Wish, expiry, first, following
from prime_p2p.recipe import Recipe
from prime_p2p.swarm.membership import Heartbeat
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
    assert (slow.at, slow.values) == (RUNNING.step + notice.OUTER_STEPS, {"inner.learning_rate": 0.5})
    (fast,) = following(before, wish, replace(RUNNING, pace=0.5)).changes
    assert fast.at == RUNNING.step + 2 * notice.SECONDS
    (sooner,) = following(before, replace(wish, notice=20.0), replace(RUNNING, pace=0.5)).changes
    assert sooner.at == RUNNING.step + 40
    with pytest.raises(BadInput, match=f"give {RUNNING.step + notice.OUTER_STEPS} or more"):
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
    for seen in (at, at + 1):  # one that says it is further than a pause lets it come changes nothing
        again = following(paused, Wish(phase="train"), Progress(seen, 60.0))
        assert [again.terms.phase_at(step) for step in (at - 1, at, at + 5)] == ["train"] * 3
    ended = following(paused, Wish(phase="end"), Progress(at, 60.0))
    assert ended.terms.phase_at(at) == "end"


def test_a_pause_that_has_not_come_yet_gives_way(before: Manifest) -> None:
    paused = following(before, Wish(recipe(inner__clip=3.0), phase="pause"), RUNNING)
    at = paused.changes[-1].at
    going_on = following(paused, Wish(phase="train"), replace(RUNNING, step=at - 1))
    assert {going_on.terms.phase_at(step) for step in range(at + 50)} == {"train"}
    assert going_on.terms.recipe_at(at).inner.clip == 3.0
    sooner = following(following(before, Wish(phase="end", at=500), RUNNING), Wish(phase="pause"), RUNNING)
    assert [change.phase for change in sooner.changes] == ["pause"]
    assert sooner.changes[0].at < 500


def test_a_change_that_is_far_ahead_holds_up_no_other(before: Manifest) -> None:
    far = following(before, Wish(recipe(inner__learning_rate=0.5), at=10_000), RUNNING)
    paused = following(far, Wish(phase="pause"), RUNNING)
    assert [(change.at, change.phase) for change in paused.changes] == [(13, "pause"), (10_000, "train")]
    assert paused.terms.recipe_at(13).inner.learning_rate == recipe().inner.learning_rate


def test_where_nobody_says_how_fast_the_run_goes_the_step_must_be_given(before: Manifest) -> None:
    for unknown in (Progress(), Progress(step=7)):
        with pytest.raises(BadInput, match="--at"):
            following(before, Wish(phase="pause"), unknown)
        assert following(before, Wish(phase="pause", at=9), unknown).changes[0].at == 9
    assert following(before, Wish(ban=["12D3KooWa"]), Progress()).admission.banned == ["12D3KooWa"]


def test_a_heartbeat_that_says_anything_moves_nothing() -> None:
    honest = [Heartbeat(step=100, pace=30.0), Heartbeat(step=101, pace=31.0), Heartbeat(step=100, pace=29.0)]
    liars = [Heartbeat(step=2**62, pace=1e-300), Heartbeat(step=0, pace=1e10)]
    seen = Progress.of([*honest, *liars])
    assert (seen.step, seen.pace) in {(100, 30.0), (101, 30.0), (100, 29.0), (100, 31.0)}
    assert Progress.of([Heartbeat(step=5, pace=1e-300)]).pace > 0.01
    assert Progress.of([]) == Progress()


def test_values_are_set_on_top_of_those_of_the_run(before: Manifest) -> None:
    one = following(before, Wish(sets=["inner.clip=3.0"]), RUNNING)
    two = following(one, Wish(sets=["outer.momentum=0.1"]), replace(RUNNING, step=50))
    assert two.terms.recipe_at(99).inner.clip == 3.0
    assert two.terms.recipe_at(99).outer.momentum == 0.1
    with pytest.raises(BadInput, match=r"model\.layers"):
        following(before, Wish(sets=["model.layers=5"]), RUNNING)


@pytest.mark.parametrize("source", ["/etc", "~/text", "../text", "a/../../b", "~other/text"])
def test_an_author_does_not_say_which_file_of_a_machine_is_trained_on(source: str, before: Manifest) -> None:
    named = before.model_copy(update={"recipe": recipe(data__source=source).model_dump(mode="json")})
    with pytest.raises(BadInput, match=r"data\.source"):
        check_signable(named)


@pytest.mark.parametrize(
    "changes",
    [{"minimum_version": "banana"}, {"minimum_version": "1." * 30}, {"bootstraps": ["/ip4/192.0.2.1/tcp/1"] * 9}],
)
def test_what_cannot_be_signed_is_named(changes: dict[str, Any], before: Manifest) -> None:
    with pytest.raises(BadInput):
        check_signable(before.model_copy(update=changes))


def test_a_change_of_the_recipe_does_not_end_a_pause(before: Manifest) -> None:
    paused = following(before, Wish(phase="pause"), RUNNING)
    at = paused.changes[-1].at
    changed = following(paused, Wish(recipe(outer__momentum=0.1)), Progress(at))
    assert changed.terms.phase_at(at) == "pause"
    assert changed.terms.outer_at(at).momentum == 0.1


def test_two_changes_in_a_row_both_hold(before: Manifest) -> None:
    one = following(before, Wish(recipe(inner__learning_rate=0.5), at=50), RUNNING)
    two = following(one, Wish(sets=["inner.clip=3.0"], at=50), RUNNING)
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
    two = following(one, Wish(admit=["12D3KooWb", "12D3KooWd"], pardon=["12D3KooWc"]), RUNNING)
    assert (two.admission.rule, two.admission.peers, two.admission.banned) == (
        "allow",
        ["12D3KooWa", "12D3KooWb", "12D3KooWd"],
        [],
    )
    assert two.changes == []


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "0h", "1w", "nand", "1e9d", "infd"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="90m, 12h or 7d"):
        expiry(text)


def test_times_are_minutes_hours_and_days() -> None:
    assert round(expiry("12h") - expiry("30m")) == 11.5 * 3600
    assert round(expiry("7d") - expiry("1d")) == 6 * 86400
