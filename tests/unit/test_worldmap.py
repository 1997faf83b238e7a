"""The map of a run: who is on it and where, and that it looks like the world."""

from __future__ import annotations

import re
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
from watched_runs import START, beat, peer_id

from prime_p2p.swarm.membership import LEFT, Heartbeat
from prime_p2p.watching.dashboard.history import History
from prime_p2p.watching.dashboard.overview import overview
from prime_p2p.watching.dashboard.peer_page import peer_page
from prime_p2p.watching.dashboard.worldmap import MOST_NAMES, OUTLINES, world_map
from prime_p2p.watching.picture import peer_values
from prime_p2p.watching.view import RunView

BERLIN, SYDNEY = (53, 13), (-34, 151)
EVIL = "</title><script>alert(1)</script>\"'&"


def run_at(*places: tuple[int, int] | None, **changes: object) -> RunView:
    """A run with a peer for each place, which has told it."""
    view = RunView("demo")
    beats = {peer_id(number): beat(number, 3, START, location=at, **changes) for number, at in enumerate(places)}
    view.looked(beats, START)
    return view


class Dot(NamedTuple):
    """As it is drawn: its place and size, in degrees, and its texts."""

    place: tuple[int, int]
    radius: float
    number: str
    title: str


def dots(view: RunView) -> list[Dot]:
    (drawing,) = re.findall(r"<svg.*</svg>", world_map(view))
    found = []
    for spot in ElementTree.fromstring(drawing).iterfind("g[@class='spot']"):
        circle = spot.find("circle")
        assert circle is not None
        place = -int(circle.attrib["cy"]), int(circle.attrib["cx"])
        title = spot.findtext("title", "")
        found.append(Dot(place, float(circle.attrib["r"]), spot.findtext("text", ""), title))
    return found


def test_there_is_no_map_where_nobody_who_is_there_says_where_it_is() -> None:
    assert world_map(RunView("demo")) == world_map(run_at(None, None)) == ""
    view = run_at(BERLIN, None)
    assert world_map(view) == overview(view, History(), None, "/ip4/192.0.2.1", START)["map"] != ""
    view.looked({peer_id(0): Heartbeat(state=LEFT, sent_at=START + 1)}, START + 1)
    assert world_map(view) == ""


def test_each_place_has_a_dot_and_that_of_several_peers_is_larger_and_says_how_many() -> None:
    view = run_at(SYDNEY, BERLIN, None, BERLIN, (0, 0))
    berlin, sydney, zero = dots(view)
    assert (berlin.place, berlin.number, berlin.title) == (BERLIN, "2", "peer-1, peer-3: 53° N, 13° E")
    assert (sydney.place, sydney.number, sydney.title) == (SYDNEY, "", "peer-0: 34° S, 151° E")
    assert (zero.place, zero.number) == ((0, 0), "")
    assert berlin.radius > sydney.radius == zero.radius
    assert "by 4 of 5." in world_map(view)


def test_names_on_the_map_stay_text_and_a_crowd_has_a_short_title() -> None:
    view = run_at(BERLIN, name=EVIL)
    assert [dot.title for dot in dots(view)] == [f"{EVIL}: 53° N, 13° E"]
    assert "<script" not in world_map(view)
    (dot,) = dots(run_at(*[BERLIN] * (MOST_NAMES + 1000)))
    assert dot.number == f"{MOST_NAMES + 1000}"
    assert dot.title.startswith("peer-0, ")
    assert dot.title.endswith(" and 1,000 more: 53° N, 13° E")
    assert dot.title.count("peer-") == MOST_NAMES


def test_the_place_of_a_peer_is_in_its_data_and_on_its_page() -> None:
    view = run_at((-34, -58), None)
    told, silent = view.peers.values()
    assert peer_values(told, START)["location"] == {"latitude": -34, "longitude": -58}
    assert peer_values(silent, START)["location"] is None
    assert "near 34° S, 58° W" in peer_page(view, told)["headline"]
    assert "near" not in peer_page(view, silent)["headline"]


@pytest.mark.parametrize(
    ("latitude", "longitude", "is_land"),
    [
        (39, -98, True),  # Kansas
        (60, -110, True),  # Alberta
        (-10, -55, True),  # Mato Grosso
        (75, -40, True),  # Greenland
        (48, 10, True),  # Bavaria
        (52, -1, True),  # England
        (63, 100, True),  # Siberia
        (22, 78, True),  # India
        (24, 45, True),  # Arabia
        (20, 10, True),  # the Sahara
        (-25, 135, True),  # Australia
        (-85, 0, True),  # Antarctica
        (0, -140, False),  # the Pacific Ocean
        (30, -45, False),  # the Atlantic Ocean
        (-20, 75, False),  # the Indian Ocean
        (38, 5, False),  # the Mediterranean Sea
        (42, 51, False),  # the Caspian Sea
        (60, -86, False),  # Hudson Bay
        (25, -90, False),  # the Gulf of Mexico
    ],
)
def test_land_and_sea_are_where_they_are_on_the_earth(latitude: int, longitude: int, is_land: bool) -> None:
    crossed = 0
    for outline in OUTLINES:
        ring = [tuple(map(int, corner.split(","))) for corner in outline.split()]
        assert len(ring) >= 3
        assert all(abs(x) <= 180 and abs(y) <= 90 for x, y in ring)
        for (x, y), (next_x, next_y) in zip(ring, [*ring[1:], ring[0]], strict=True):
            if (y > latitude) != (next_y > latitude):
                crossed += x + (latitude - y) / (next_y - y) * (next_x - x) > longitude
    assert crossed % 2 == is_land
