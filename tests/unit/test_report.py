import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_p2p.monitor.charts import (
    MAX_BARS,
    MAX_POINTS,
    TIME,
    Axes,
    Series,
    bar_chart,
    line_chart,
    thinned,
    ticks,
    time_ticks,
)
from prime_p2p.monitor.metrics import PhaseSeconds, RoundMetrics
from prime_p2p.monitor.page import page, write_html
from prime_p2p.monitor.report import PeerResult, RunFacts, build_report, summary, write_json

FACTS = RunFacts(
    name="tiny",
    seed=1,
    recipe="peers/tiny.toml",
    directory="runs/tiny",
    outer_steps=3,
    threads_per_peer=1,
    started_at="2026-11-29T20:47:00+00:00",
    wall_seconds=94.2,
    val_start=5.5,
    val_end=1.5,
)


def made(step: int, digest: str = "", group: int = 2, **changes: Any) -> RoundMetrics:
    fields: dict[str, Any] = {
        "outer_step": step,
        "digest": digest or f"{step:064x}",
        "group": tuple("abcdefgh"[:group]),
        "weights": (64,) * group,
        "attempts": 1,
        "train_loss": 6.0 - step,
        "tokens": 64,
        "bytes_sent": 1000,
        "bytes_received": 2000,
        "seconds": PhaseSeconds(inner=3.0, gather=0.25, reduce=0.25, commit=0.125, apply=0.125, total=4.0),
    }
    return RoundMetrics(**(fields | changes))


def a_peer(name: str, *metrics: RoundMetrics, finished: bool = True, ending: str = "finished") -> PeerResult:
    return PeerResult(name, f"12D3KooW{name}", finished, ending, metrics)


def a_report(*peers: PeerResult, **facts: Any) -> dict[str, Any]:
    return build_report(RunFacts(**(FACTS.__dict__ | facts)), peers)


THREE = tuple(made(step) for step in (1, 2, 3))


def test_the_report_has_the_agreed_figures() -> None:
    report = a_report(a_peer("peer-1", *THREE), a_peer("peer-2", *THREE))
    assert report["peers"] == 2
    assert report["outer_steps"] == 3
    assert report["val_loss"] == {"start": 5.5, "end": 1.5}
    assert report["digests_agree"] is True
    assert report["compute_share"] == 0.75
    assert report["bytes_sent_per_peer"] == 3000
    assert [(one["outer_step"], one["group_size"], one["digest"]) for one in report["rounds"]] == [
        (step, 2, f"{step:064x}") for step in (1, 2, 3)
    ]
    assert report["seconds"]["inner"] == 9.0
    assert report["seconds"]["total"] == 12.0


def test_digests_agree_only_where_all_that_finished_hold_the_same() -> None:
    lonely = a_peer("peer-2", made(1, "ff"), made(2), made(3))
    report = a_report(a_peer("peer-1", *THREE), lonely, a_peer("peer-3", *THREE))
    assert report["digests_agree"] is False
    assert report["rounds"][0]["digest"] == f"{1:064x}"
    assert (report["rounds"][0]["held_by"], report["rounds"][0]["recorded_by"]) == (2, 3)


def test_the_digest_of_a_peer_that_died_does_not_count_as_disagreement() -> None:
    dead = a_peer("peer-2", made(1), made(2, "ff"), finished=False, ending="killed by SIGKILL")
    assert a_report(a_peer("peer-1", *THREE), dead)["digests_agree"] is True


def test_outer_steps_that_only_some_recorded_are_no_disagreement() -> None:
    late = a_peer("peer-2", made(3))
    report = a_report(a_peer("peer-1", *THREE), late)
    assert report["digests_agree"] is True
    assert [one["recorded_by"] for one in report["rounds"]] == [1, 1, 2]


def test_after_a_fork_the_last_record_of_an_outer_step_counts() -> None:
    healed = a_peer("peer-2", made(1, "ff"), made(1), made(2), made(3))
    assert a_report(a_peer("peer-1", *THREE), healed)["digests_agree"] is True


def test_figures_are_of_the_peers_that_finished() -> None:
    dead = a_peer("peer-2", made(1, bytes_sent=10**9), finished=False, ending="exit code 1")
    report = a_report(a_peer("peer-1", *THREE), dead)
    assert report["bytes_sent_per_peer"] == 3000
    assert (report["peers"], report["peers_finished"]) == (2, 1)
    assert report["peer_details"][1]["ending"] == "exit code 1"


def test_curves_begin_and_end_with_the_validation_of_the_initial_and_final_model() -> None:
    report = a_report(a_peer("peer-1", made(1), made(2, val_loss=2.5), made(3)))
    assert report["curves"]["validation"] == [[0, 5.5], [2, 2.5], [3, 1.5]]
    assert report["curves"]["train"] == {"peer-1": [[1, 5.0], [2, 4.0], [3, 3.0]]}


def test_a_swarm_in_which_nobody_made_an_outer_step_still_has_a_report(tmp_path: Path) -> None:
    peer = a_peer("peer-1", finished=False, ending="exit code 2")
    report = a_report(peer, val_start=None, val_end=None, failure="no peer made it", exit_code=1)
    assert (report["outer_steps"], report["digests_agree"], report["compute_share"]) == (0, None, 0.0)
    assert json.loads(write_json(report, tmp_path).read_text()) == report
    assert "no peer made it" in page(report)
    assert "0 of 1 peers made 0 of 3 outer steps" in summary(report)


def test_the_summary_names_what_matters() -> None:
    lines = summary(a_report(a_peer("peer-1", *THREE), events=("peer-2 lost",))).splitlines()
    assert lines[0] == "1 of 1 peers made 3 of 3 outer steps in 94 s"
    assert "validation loss   5.5000 -> 1.5000" in lines
    assert any(line.startswith("peers per round   ") and line.endswith(" of 3") for line in lines)
    assert "note              peer-2 lost" in lines
    assert lines[-2:] == ["model             runs/tiny/model", "report            runs/tiny/report.html"]


class Checker(HTMLParser):
    """Notes every tag that is opened and not closed, and every address that a browser would load."""

    VOID = frozenset(("meta", "br", "link", "img"))

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.loaded: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def checked(html: str) -> Checker:
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert checker.open == []
    return checker


@pytest.mark.parametrize("peers", [1, 2, 8, 9])
def test_the_page_is_well_formed_and_loads_nothing(peers: int, tmp_path: Path) -> None:
    report = a_report(*(a_peer(f"peer-{number}", *THREE) for number in range(1, peers + 1)))
    html = write_html(report, tmp_path).read_text()
    checker = checked(html)
    assert checker.loaded == []
    assert checker.tags.isdisjoint({"script", "link", "img", "iframe"})
    assert "url(" not in html
    assert "@import" not in html
    drawings = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(drawings) == 6
    for drawing in drawings:
        ElementTree.fromstring(drawing)
    assert "prefers-color-scheme:dark" in html


def test_every_text_of_the_page_is_escaped() -> None:
    evil = "<script>alert(1)</script>\"'&"
    peer = PeerResult(evil, evil, False, evil, (made(1, digest=evil), made(2)))
    report = a_report(peer, name=evil, recipe=evil, events=(evil,), failure=evil, started_at=evil)
    checker = checked(page(report))
    assert "script" not in checker.tags
    assert "".join(checker.text).count("<script>alert(1)</script>") >= 6


@settings(deadline=None)
@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(1, 12))
def test_ticks_are_evenly_spaced_few_and_inside(low: float, span: float, most: int) -> None:
    high = low + span
    found = ticks(low, high, most)
    assert len(found) <= most + 1
    slack = 1e-6 * max(abs(low), abs(high), 1.0)
    assert all(low - slack <= value <= high + slack for value in found)
    gaps = {round((after - before) / span, 6) for before, after in itertools.pairwise(found)}
    assert max(gaps, default=0.0) - min(gaps, default=0.0) <= 1e-5 + slack / span


def test_ticks_of_counts_are_whole() -> None:
    assert ticks(0, 2.1, most=5, whole=True) == [0, 1, 2]
    assert ticks(0, 0.7, most=5) == pytest.approx([0, 0.2, 0.4, 0.6])
    assert ticks(3, 3, most=5) == [3]


@settings(deadline=None)
@given(st.integers(0, 2 * 10**9), st.integers(1, 10**8), st.integers(1, 12))
def test_ticks_of_times_are_few_inside_and_round_on_a_clock(low: int, span: int, most: int) -> None:
    found = time_ticks(low, low + span, most)
    assert len(found) <= most + 1
    assert all(low <= value <= low + span for value in found)
    gaps = {after - before for before, after in itertools.pairwise(found)}
    assert len(gaps) <= 1
    assert all(86400 % gap == 0 or gap % 86400 == 0 for gap in gaps)


def test_a_chart_over_time_says_times_of_day() -> None:
    noon = 1_700_049_600.0
    points = tuple((noon + 30 * number, 1.0) for number in range(5))
    drawn = line_chart(Axes("Speed", "tokens/s", across=TIME), [Series("all", "c0", points)])
    assert "time (UTC)" in drawn
    assert ">12:01<" in drawn
    assert "all, at 12:00:30: 1" in drawn


@settings(deadline=None)
@given(st.integers(1, 2000), st.integers(1, 100))
def test_a_thinned_series_is_short_ordered_and_keeps_the_mean(count: int, most: int) -> None:
    series = thinned(Series("loss", "c0", tuple((float(x), 2.0) for x in range(count))), most)
    assert len(series.points) == min(count, most)
    assert all(y == 2.0 for _, y in series.points)
    xs = [x for x, _ in series.points]
    assert xs == sorted(set(xs))


def test_a_long_run_draws_a_bounded_number_of_marks() -> None:
    points = tuple((float(step), 1.0 + step % 3) for step in range(20_000))
    lines = line_chart(Axes("Loss", "nats"), [Series("peer-1", "c0", points)])
    bars = bar_chart(Axes("Time", "s"), [Series("inner", "c0", points), Series("gather", "c1", points)])
    assert lines.count("<circle") == 2 * MAX_POINTS
    assert bars.count("<rect") == 2 * 2 * MAX_BARS


def test_stacked_bars_stand_on_each_other() -> None:
    series = [Series("inner", "c0", ((1.0, 3.0),)), Series("gather", "c1", ((1.0, 1.0),))]
    drawing = ElementTree.fromstring(bar_chart(Axes("Time", "s"), series).split("</svg>")[0] + "</svg>")
    lower, upper = drawing.findall("rect")
    floor = float(upper.attrib["y"]) + float(upper.attrib["height"])
    assert floor == pytest.approx(float(lower.attrib["y"]), abs=0.11)
    ratio = float(lower.attrib["height"]) / float(upper.attrib["height"])
    assert ratio == pytest.approx(3.0, abs=0.02)


def test_a_chart_without_points_says_so() -> None:
    assert line_chart(Axes("Loss", "nats"), [Series("peer-1", "c0", ())]) == (
        '<p class="nothing">Loss: nothing was measured.</p>'
    )


@given(
    st.lists(st.tuples(st.integers(0, 2**63 - 1), st.floats(-1e30, 1e30)), min_size=1, max_size=5),
    st.integers(1, 300),
)
def test_any_figures_that_a_peer_may_tell_can_be_drawn(told: list[tuple[int, float]], many: int) -> None:
    near_the_end = [(2**63 - 1 - many + place, 1.0) for place in range(many)]
    for pairs in (told, near_the_end):
        points = tuple((float(step), value) for step, value in sorted(pairs))
        heights = tuple((step, abs(value)) for step, value in points)
        drawn = line_chart(Axes("Loss", "nats", from_zero=False), [Series("a", "c0", points)])
        drawn += bar_chart(Axes("Bytes", "MB"), [Series("a", "c0", heights)])
        assert not re.search(r'"-?(nan|inf)"', drawn)


def test_large_figures_fit_beside_a_chart() -> None:
    drawn = line_chart(Axes("Speed", "tokens a second"), [Series("all", "c0", ((1.0, 12_000_000.0), (2.0, 1.0)))])
    assert ">10M</text>" in drawn
    assert ": 12,000,000<" in drawn  # hovering shows all of it
