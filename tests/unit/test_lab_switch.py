"""When a packet arrives, given the links, and which packets are lost."""

from __future__ import annotations

import struct

import pytest

from prime_p2p.errors import BadInput
from prime_p2p.lab.link import BURST, QUEUE, Link
from prime_p2p.lab.switch import Traffic, size_on_line

MBIT = 125_000  # bytes
FOREVER = 1e9


def arrivals(traffic: Traffic) -> list[tuple[float, int, bytes]]:
    """All that is still to come: when, where, what."""
    found = []
    while (at := traffic.next_at()) < FOREVER:
        found += [(at, target, packet) for target, packet in traffic.arrived(at)]
    return found


def test_a_packet_takes_the_delays_of_both_links() -> None:
    traffic = Traffic([Link(delay=25), Link(delay=40)])
    traffic.send(1.0, 0, 1, b"there", 1500)
    traffic.send(2.0, 1, 0, b"back", 1500)
    assert list(traffic.arrived(1.064)) == []
    assert list(traffic.arrived(1.066)) == [(1, b"there")]
    assert arrivals(traffic) == [(pytest.approx(2.065), 0, b"back")]


def test_a_line_sends_its_rate_and_the_slower_of_the_two_decides() -> None:
    traffic = Traffic([Link(up=8, delay=500), Link(down=4)])
    for number in range(20):
        traffic.send(0.0, 0, 1, bytes([number]), MBIT // 10)
    found = arrivals(traffic)
    assert [packet[0] for _, _, packet in found] == list(range(20))
    assert found[-1][0] - found[0][0] == pytest.approx(19 * 0.1 / 4, rel=0.05)
    assert found[0][0] >= 0.5


def test_the_directions_of_a_link_do_not_share_its_rate() -> None:
    traffic = Traffic([Link(up=1, down=4), Link()])
    traffic.send(0.0, 0, 1, b"up", MBIT)
    traffic.send(0.0, 1, 0, b"down", MBIT)
    assert arrivals(traffic) == [(pytest.approx(0.25 - BURST), 0, b"down"), (pytest.approx(1 - BURST), 1, b"up")]


def test_one_that_comes_from_afar_does_not_keep_the_line_of_its_receiver_meanwhile() -> None:
    traffic = Traffic([Link(delay=1000), Link(), Link(down=100)])
    traffic.send(0.0, 0, 2, b"far", 1500)
    traffic.send(0.1, 1, 2, b"near", 1500)
    assert [(round(at, 2), packet) for at, _, packet in arrivals(traffic)] == [(0.1, b"near"), (1.0, b"far")]


def test_a_packet_that_would_wait_for_too_long_is_lost() -> None:
    traffic = Traffic([Link(up=1), Link()])
    size = MBIT // 100  # 10 ms
    for _ in range(100):
        traffic.send(0.0, 0, 1, b"", size)
    assert len(arrivals(traffic)) == round((BURST + QUEUE) / 0.01) + 1
    traffic.send(10.0, 0, 1, b"later", size)
    assert [packet for _, _, packet in arrivals(traffic)] == [b"later"]


def test_as_much_can_wait_as_is_under_way_on_the_longest_round_trip() -> None:
    traffic = Traffic([Link(up=1, delay=100), Link(), Link(delay=300)])
    for _ in range(200):
        traffic.send(0.0, 0, 1, b"", MBIT // 100)
    assert len(arrivals(traffic)) == pytest.approx(80, abs=3)


def test_being_late_costs_a_line_nothing() -> None:
    prompt, late = (Traffic([Link(up=8), Link(down=8)]) for _ in range(2))
    for number in range(10):
        prompt.send(0.01 * number, 0, 1, b"", MBIT * 8 // 100)
        late.send(0.01 * number + 0.004 * (number % 2), 0, 1, b"", MBIT * 8 // 100)
    assert arrivals(late)[-1][0] <= arrivals(prompt)[-1][0] + 0.005


def test_packets_stay_in_order_however_seldom_one_looks() -> None:
    traffic = Traffic([Link(up=50, delay=5), Link(down=20)])
    for number in range(50):
        traffic.send(0.0, 0, 1, bytes([number]), 1500)
    found = [packet[0] for now in (0.0055, 1.0) for _, packet in traffic.arrived(now)]
    assert found == list(range(50))


def test_a_large_packet_counts_with_the_headers_of_its_segments() -> None:
    header = struct.pack("=BBHHHH", 1, 1, 0, 1448, 0, 0)
    assert size_on_line(header + bytes(52 + 10 * 1448)) == 10 * 1500
    assert size_on_line(struct.pack("=BBHHHH", 0, 0, 0, 0, 0, 0) + bytes(40)) == 40


@pytest.mark.parametrize("name", ["up", "down", "delay"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_link_is_nothing_impossible(name: str, value: float) -> None:
    with pytest.raises(BadInput, match=f"a link's {name} must be 0 or more"):
        Link(**{name: value})
