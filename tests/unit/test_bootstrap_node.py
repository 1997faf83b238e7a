import pytest

from prime_p2p.bootstrap_node import best_address
from prime_p2p.errors import PrimeError

LOOPBACK = "/ip4/127.0.0.1/tcp/31337/p2p/x"
LOCAL = "/ip4/192.168.1.2/tcp/31337/p2p/x"
PUBLIC = "/ip4/8.8.8.8/tcp/31337/p2p/x"
PUBLIC_QUIC = "/ip4/8.8.8.8/udp/31337/quic/p2p/x"
LINK_LOCAL = "/ip6/fe80::1/tcp/31337/p2p/x"


@pytest.mark.parametrize(
    ("addresses", "best"),
    [
        ([LOOPBACK], LOOPBACK),
        ([LOOPBACK, LINK_LOCAL], LINK_LOCAL),
        ([LOOPBACK, LINK_LOCAL, LOCAL], LOCAL),
        ([LOOPBACK, LOCAL, PUBLIC], PUBLIC),
        ([PUBLIC_QUIC, PUBLIC], PUBLIC),
        ([PUBLIC_QUIC, LOCAL], PUBLIC_QUIC),
    ],
)
def test_the_address_that_is_easiest_to_reach_is_given_out(addresses: list[str], best: str) -> None:
    assert best_address(addresses) == best


@pytest.mark.parametrize("announced", ["/ip4/192.168.1.2/tcp/31337", LOCAL])
def test_an_announced_address_goes_before_all_others(announced: str) -> None:
    assert best_address([PUBLIC, LOCAL], (announced,)) == LOCAL


def test_a_name_is_as_good_as_a_public_address() -> None:
    name = "/dns4/example.org/tcp/31337/p2p/x"
    assert best_address([LOCAL, name]) == name


def test_a_node_that_listens_nowhere_is_an_error() -> None:
    with pytest.raises(PrimeError, match="listens at no address"):
        best_address([])
