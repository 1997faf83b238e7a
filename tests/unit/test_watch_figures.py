"""Figures of peers in columns: how they are written, which fit, and how they sort."""

from __future__ import annotations

import pytest
from rich.cells import cell_len
from watched_runs import START, beat, now, peer_id, run_of

from prime_p2p.watching.figures import COLUMNS, ago, columns_for, compact, in_order, matches
from prime_p2p.watching.terminal.curve import curve
from prime_p2p.watching.view import RunView

BY_TITLE = {column.title: column for column in COLUMNS}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (999.6, "1.00k"), (12_345, "12.3k"), (99_960, "100k"), (10**9, "1.00G"), (1e30, "a lot")],
)
def test_numbers_have_three_digits_and_at_most_five_characters(value: float, text: str) -> None:
    assert compact(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0s"), (59.9, "59s"), (60, "1m"), (3600, "1h"), (86400 * 3, "3d"), (1e9, "99d")]
)
def test_times_have_at_most_three_characters(seconds: float, text: str) -> None:
    assert ago(seconds) == text


@pytest.mark.parametrize("width", range(10, 140, 7))
def test_the_columns_that_are_shown_fit_and_names_take_what_is_left(width: int) -> None:
    shown = columns_for(width)
    taken = sum(column.width + 1 for column in shown)
    assert taken <= width
    assert shown[0].title == "peer"
    if width >= 79:
        assert len(shown) == len(COLUMNS)


@pytest.mark.parametrize("name", ["", "ab", "x" * 64, "日本語のピア名", "a日本語のピア名", "[red]x[/]", "\u0301" * 64])
def test_whatever_a_peer_is_called_its_cell_is_as_wide_as_the_column(name: str) -> None:
    assert cell_len(BY_TITLE["peer"].cell(name)) == BY_TITLE["peer"].width


def test_what_a_peer_says_never_makes_a_cell_wider_than_its_column() -> None:
    view = RunView("demo")
    view.looked({peer_id(0): beat(0, 2**62, START, tokens=2**62, state="日" * 16, name="日" * 64)}, START)
    most = {"outer_step": 2**62, "inner_step": 2**62, "inner_steps": 2**62, "loss": -1e30, "tokens_per_second": 1e15}
    view.heard(peer_id(0), [now(0, 1, **most, group_size=256)], START)
    for column in COLUMNS:
        text = column.cell(column.text(view.peers[peer_id(0)], START + 1e9))
        assert cell_len(text) == column.width, column.title


def test_peers_sort_by_any_column_either_way_with_those_that_are_gone_last() -> None:
    view = run_of(11)
    view.silent(peer_id(10), START)
    for column in COLUMNS:
        for reverse in (False, True):
            order = in_order(view.peers.values(), column, reverse, START)
            assert len(order) == 11
            assert order[-1].peer_id == peer_id(10)
            figures = [column.order(peer, START) for peer in order[:-1]]
            assert figures == sorted(figures, reverse=column.largest_first is not reverse)
    names = [peer.name for peer in in_order(view.peers.values(), BY_TITLE["peer"], False, START)]
    assert names[:4] == ["peer-0", "peer-1", "peer-2", "peer-3"]


def test_a_filter_finds_parts_of_names_ids_and_states() -> None:
    peer = run_of(1).peers[peer_id(0)]
    assert all(matches(peer, wanted) for wanted in ("", "PEER-0", "koowtest", "train"))
    assert not matches(peer, "peer-1")


def test_a_curve_goes_through_its_points_from_corner_to_corner() -> None:
    assert curve([(0, 1.0), (10, 0.0)], 2, 1) == ["⠑⢄"]
    rising, falling = (curve(points, 10, 3) for points in ([(0, 0.0), (5, 1.0)], [(0, 1.0), (5, 0.0)]))
    assert rising[0][-1] != "⠀"
    assert rising[-1][0] != "⠀"
    assert falling[0][0] != "⠀"
    assert all(len(line) == 10 for line in rising)


@pytest.mark.parametrize("points", [[], [(3, 1.0)], [(3, 1.0), (4, 1.0)], [(0, -1e30), (2**62, 1e30)]])
def test_a_curve_of_few_or_far_points_has_its_size_too(points: list[tuple[float, float]]) -> None:
    assert [len(line) for line in curve(points, 7, 3)] == [7, 7, 7]
