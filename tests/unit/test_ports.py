"""Where a node listens."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest

from prime_p2p.errors import BadInput
from prime_p2p.network import ports
from prime_p2p.network.ports import HeldPort, everywhere, listen_addresses


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_is_the_same_at_all_addresses_and_nobody_else_gets_it() -> None:
    held = HeldPort(["127.0.0.1", "127.0.0.2", "127.0.0.1"], 0)
    try:
        assert listen_addresses(["127.0.0.1", "::1"], held.port) == (
            f"/ip4/127.0.0.1/tcp/{held.port}",
            f"/ip6/::1/tcp/{held.port}",
        )
        assert listen_addresses(["127.0.0.1"], 5, quic=True) == ("/ip4/127.0.0.1/tcp/5", "/ip4/127.0.0.1/udp/5/quic-v1")
        for host in ("127.0.0.1", "127.0.0.2"):
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind((host, held.port))
            with pytest.raises(BadInput, match=f"{host} port {held.port}: Address already in use"):
                HeldPort([host], held.port)
    finally:
        held.close()
    HeldPort(["127.0.0.1", "127.0.0.2"], held.port).close()


def test_a_port_that_is_taken_at_one_address_is_not_held_at_the_others(taken: int) -> None:
    with pytest.raises(BadInput, match=r"127\.0\.0\.1 port"):
        HeldPort(["127.0.0.2", "127.0.0.1"], taken)
    HeldPort(["127.0.0.2"], taken).close()


def test_the_next_free_port_is_taken_and_said(taken: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        held = HeldPort(["127.0.0.1"], taken, or_next=True)
    held.close()
    assert taken < held.port <= taken + ports.NEXT_PORTS
    assert caplog.messages == [f"port {taken} is taken (Address already in use); listening on port {held.port}"]


def test_who_finds_no_free_port_is_told_how_far_was_looked(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "NEXT_PORTS", 0)
    with pytest.raises(BadInput, match=f"port {taken} nor at one of the next 0: "):
        HeldPort(["127.0.0.1"], taken, or_next=True)


def test_ipv4_and_ipv6_have_sockets_of_their_own() -> None:
    held = HeldPort(everywhere(), 0)
    held.close()
    assert everywhere()[0] == "0.0.0.0"


@pytest.mark.parametrize(
    ("hosts", "port"), [((), 1), (("localhost",), 1), (("127.0.0.1", "300.0.0.1"), 1), (("::1",), 65536)]
)
def test_what_is_no_address_is_refused(hosts: tuple[str, ...], port: int) -> None:
    with pytest.raises(BadInput):
        listen_addresses(hosts, port)
