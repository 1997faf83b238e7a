"""What a node asks others for, and what it makes of their answers."""

from __future__ import annotations

from prime_p2p.network.dial_back import NOT_YOURS, Reach
from prime_p2p.network.reachability import announcement, questions, verdict

LAN, MINE = "/ip4/192.168.1.2/tcp/31330", "/ip4/11.0.0.7/tcp/31330"
RELAYED = "/ip4/11.0.0.1/tcp/31337/p2p/12D3KooWA/p2p-circuit/p2p/12D3KooWB"


def test_a_node_asks_for_its_port_wherever_it_is_seen_and_for_what_a_router_has_mapped() -> None:
    listen = ("/ip4/0.0.0.0/tcp/31330", "/ip6/fd00::1/tcp/31330", "/ip4/0.0.0.0/udp/31330/quic-v1")
    own = [
        f"{LAN}/p2p/12D3KooWB",
        f"{MINE}/p2p/12D3KooWB",
        RELAYED,
        "/ip4/11.0.0.7/udp/31330/quic-v1",
        "/ip6/::1/tcp/1",
    ]
    assert questions(listen, own) == ["/ip4/0.0.0.0/tcp/31330", "/ip6/::/tcp/31330", MINE]


def test_who_can_be_dialled_from_the_internet_is_dialled_and_neighbours_do_not_count_beside_it() -> None:
    lan, mine = Reach(LAN, True, ""), Reach(MINE, False, "no answer within 3 s")
    assert verdict([lan]) is True
    assert verdict([lan, mine]) is False
    assert verdict([mine, Reach(MINE.replace("7", "8"), True, "")]) is True
    assert verdict([Reach("/dns4/example.org/tcp/1", True, ""), mine]) is True
    assert verdict([Reach(LAN, False, "Connection refused")]) is False


def test_nothing_is_made_of_no_answers() -> None:
    assert verdict([]) is None
    assert verdict([Reach(MINE, False, NOT_YOURS)]) is None


def test_an_address_that_others_have_found_is_told_before_our_own_but_not_what_only_this_machine_can_dial() -> None:
    own = [LAN, "/ip6/2a00::1/tcp/31330", "/ip4/127.0.0.1/tcp/31330", "/ip6/::1/tcp/31330"]
    assert announcement([MINE], own) == (MINE, LAN, "/ip6/2a00::1/tcp/31330")
    assert announcement([MINE], [LAN] * 20) == (MINE, *[LAN] * 7)
