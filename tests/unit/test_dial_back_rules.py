"""What a node tries for others, and what it believes of their answers."""

from __future__ import annotations

import ipaddress

import pytest

from prime_p2p.network.dial_back import Allowance, direct, is_answer_to


def test_every_peer_may_so_often_and_all_together_so_often() -> None:
    allowance = Allowance(2, 3, period=60.0)
    assert [allowance.admit("a", 0.0), allowance.admit("a", 1.0), allowance.admit("a", 2.0)] == [True, True, False]
    assert [allowance.admit("b", 3.0), allowance.admit("c", 4.0)] == [True, False]
    assert [allowance.admit("c", 60.0), allowance.admit("a", 60.5), allowance.admit("a", 61.0)] == [True, False, True]
    assert allowance._counts == {"a": 1, "b": 1, "c": 1}


def test_where_a_peer_is_connected_from_is_not_where_its_relay_is() -> None:
    ends = [
        "/ip4/192.0.2.1/tcp/5",
        "/ip6/2001:db8::1/udp/5/quic-v1",
        "/ip4/192.0.2.9/tcp/5/p2p/12D3KooW/p2p-circuit",
        "/dns4/example.org/tcp/5",
        "",
    ]
    assert direct(ends) == {ipaddress.ip_address("192.0.2.1"), ipaddress.ip_address("2001:db8::1")}


@pytest.mark.parametrize(
    ("asked", "answered", "right"),
    [
        ("/ip4/192.0.2.1/tcp/5", "/ip4/192.0.2.1/tcp/5", True),
        ("/ip4/192.0.2.1/tcp/5", "/ip4/192.0.2.2/tcp/5", False),
        ("/ip4/0.0.0.0/tcp/5", "/ip4/192.0.2.1/tcp/5", True),
        ("/ip4/0.0.0.0/tcp/5", "/ip4/0.0.0.0/tcp/5", True),
        ("/ip4/0.0.0.0/tcp/5", "/ip4/192.0.2.1/tcp/6", False),
        ("/ip4/0.0.0.0/tcp/5", "/ip6/2001:db8::1/tcp/5", False),
        ("/ip4/0.0.0.0/tcp/5", "/ip4/evil/tcp/5", False),
        ("/ip4/0.0.0.0/tcp/5", "/dns4/evil.example.org/tcp/5", False),
        ("/ip6/::/tcp/5", "/ip6/2001:db8::1/tcp/5", True),
        ("/dns4/example.org/tcp/5", "/dns4/example.com/tcp/5", False),
    ],
)
def test_an_answer_is_about_what_was_asked(asked: str, answered: str, right: bool) -> None:
    assert is_answer_to(asked, answered) is right
