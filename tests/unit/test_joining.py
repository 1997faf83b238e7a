"""What somebody is shown before joining, and who is told that a machine is too small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from public_runs import TINY, author, signed

from prime_p2p.errors import BadInput
from prime_p2p.public.joining import check_room, description
from prime_p2p.public.look import Look
from prime_p2p.recipe import Recipe
from prime_p2p.terms import recipe_with


def look(folder: Path, peers: int = 0, pace: float = 0.0, **values: Any) -> Look:
    recipe = recipe_with(Recipe.load(TINY), {key.replace("__", "."): value for key, value in values.items()})
    rows = [{"outer_step": 7, "pace": pace} for _ in range(peers)]
    return Look(signed(author(folder), recipe=recipe.model_dump(mode="json")), rows)


def test_it_shows_what_is_trained_on_what_and_what_that_takes(tmp_path: Path) -> None:
    shown = dict(description(look(tmp_path, peers=3, pace=100.0, data__licence="CC-BY 4.0")))
    assert "3 there, outer step 7 of 30" in shown["peers"]
    assert "python-stdlib (licence: CC-BY 4.0)" in shown["data"]
    assert shown["model"].startswith("0.4922 M parameters")
    # Four peers send 2 * 3/4 of 494 kB in a round, and a round comes every 100 s.
    assert "741 kB each way every 80 inner steps: 26.7 MB an hour" in shown["traffic"]
    assert "Mbit/s or more" in shown["bandwidth"] or "kbit/s or more" in shown["bandwidth"]
    assert {"memory", "disk", "admission", "run"} <= shown.keys()


def test_without_peers_nothing_is_said_of_the_pace(tmp_path: Path) -> None:
    shown = dict(description(look(tmp_path)))
    assert shown["peers"] == "nobody there just now"
    assert "hour" not in shown["traffic"]
    assert "licence: not stated" in shown["data"]


def test_what_an_author_wrote_cannot_move_the_cursor(tmp_path: Path) -> None:
    shown = dict(description(look(tmp_path, data__source="/data\x1b[2J\nbandwidth  any", data__licence="\u202eevil")))
    assert shown["data"].isprintable()


def test_a_machine_that_is_too_small_is_told_the_number_that_is_short(tmp_path: Path) -> None:
    check_room(look(tmp_path), tmp_path, "cpu")
    large = look(tmp_path, model__hidden_size=2**20, model__intermediate_size=2**22, model__layers=100)
    with pytest.raises(BadInput, match=r"too small for run tiny: memory: .* free, the recipe needs .* TB"):
        check_room(large, tmp_path / "not" / "there", "cpu")
