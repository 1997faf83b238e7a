"""Where a peer says that it is: to a whole degree, only where its owner said so, and never what is no place."""

from __future__ import annotations

import math

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_p2p.errors import BadInput
from prime_p2p.network import dropped
from prime_p2p.swarm.location import Location
from prime_p2p.swarm.membership import Heartbeat, first_heartbeat, read_heartbeat


def kept(beat: Heartbeat) -> bytes:
    packed: bytes = msgpack.packb(beat.record())
    return packed


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("52.52,13.405", (53, 13)),
        ("-33.9,151.2", (-34, 151)),
        (" 48 , 2 ", (48, 2)),
        ("90,-180", (90, -180)),
        ("-0.3,0.4", (0, 0)),
    ],
)
def test_a_location_is_rounded_to_whole_degrees(text: str, location: tuple[int, int]) -> None:
    assert Location.of(text) == location
    assert [type(part) for part in Location.of(text)] == [int, int]


@given(st.floats(-90, 90), st.floats(-180, 180))
def test_any_place_can_be_told_and_is_read_as_the_nearest_whole_degrees(latitude: float, longitude: float) -> None:
    told = first_heartbeat(b"", "anne", [], Location.of(f"{latitude},{longitude}"))
    beat = read_heartbeat("peer", msgpack.unpackb(kept(told)))
    assert beat is not None
    assert beat.location is not None
    assert math.dist(beat.location, (latitude, longitude)) <= math.sqrt(0.5)


@pytest.mark.parametrize(
    "text", ["", "52", "52,13,1", "north,west", "90.1,0", "0,-180.5", "nan,0", "0,inf", "52;13", "1\n2,3"]
)
def test_what_is_no_place_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadInput, match=r"--location .*must be LAT,LON in degrees") as refused:
        Location.of(text)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    "location",
    [
        [91, 0],
        [0, 181],
        [-91, 0],
        [2**63, 0],
        [52.5, 13.4],
        [math.nan, 0],
        [True, 0],
        ["52", 13],
        [52],
        [1, 2, 3],
        "ab",
    ],
)
def test_a_heartbeat_with_a_bad_location_is_dropped(location: object) -> None:
    fields = msgpack.unpackb(kept(Heartbeat(step=3)))
    assert read_heartbeat("peer", fields) == Heartbeat(step=3)
    assert read_heartbeat("peer", fields | {"location": location}) is None
    assert dropped.counts() == {"heartbeat": 1}


def test_a_location_takes_no_room_in_a_heartbeat_where_none_is_told() -> None:
    beat = first_heartbeat(b"", "anne", [])
    assert beat.location is None
    assert kept(beat) == msgpack.packb(beat.model_dump(exclude={"location"}))
    assert len(kept(beat.model_copy(update={"location": Location(-90, -180)}))) - len(kept(beat)) < 16
