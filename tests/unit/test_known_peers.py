"""The file of the peers met before."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path

import pytest

from prime_p2p.network.identity import Identity
from prime_p2p.network.known import MOST_PEERS, Contacts, KnownPeers

ADDRESS = "/ip4/192.0.2.1/tcp/31330"


@pytest.fixture
def peers(tmp_path: Path) -> list[str]:
    return [Identity.load_or_create(tmp_path / f"key{number}").peer_id for number in range(3)]


def met(path: Path, contacts: Contacts) -> None:
    async def keep() -> None:
        known = KnownPeers(path)
        known.keep(lambda: contacts)
        await known.close()
        await known.close()

    asyncio.run(keep())


def test_peers_that_were_met_are_there_after_a_restart_those_seen_last_first(tmp_path: Path, peers: list[str]) -> None:
    path = tmp_path / "peers.json"
    assert KnownPeers(path).addresses() == {}
    met(
        path, {peers[0]: ([ADDRESS], 100.0), peers[1]: ([ADDRESS, "/dns4/example.org/tcp/1"], 5.0), peers[2]: ([], 0.0)}
    )
    assert KnownPeers(path).addresses() == {peers[1]: [ADDRESS, "/dns4/example.org/tcp/1"], peers[0]: [ADDRESS]}
    met(path, {peers[0]: (["/ip6/2001:db8::1/tcp/1"], 0.0)})
    assert list(KnownPeers(path).addresses()) == [peers[0], peers[1]]
    assert KnownPeers(path).addresses()[peers[0]] == ["/ip6/2001:db8::1/tcp/1"]
    assert {name.name for name in tmp_path.iterdir() if "peers" in name.name} == {"peers.json"}


def test_only_so_many_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    met(path, {f"peer{number}": ([ADDRESS] * 20, float(number)) for number in range(100)})
    kept = json.loads(path.read_text())["peers"]
    assert set(kept) == {f"peer{number}" for number in range(MOST_PEERS)}
    assert all(len(known["addresses"]) == 8 for known in kept.values())


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"peers": {"PEER": {"addresses": ["/ip4/192.0.2.1/tcp/1"]}}}',
        '{"peers": {"PEER": {"addresses": ["nowhere"], "seen": 1.0}}}',
        '{"peers": {"PEER": {"addresses": [], "seen": 1.0}}}',
        '{"peers": {"12D3KooW": {"addresses": ["/ip4/192.0.2.1/tcp/1"], "seen": 1.0}}}',
        '{"peers": {"PEER": {"addresses": ["/ip4/192.0.2.1/tcp/1"], "seen": -1.0}}}',
        '{"peers": {}}' + " " * (1 << 19) + "x",
        "[" * 100_000,
        "\udcff\udcfe",
    ],
)
def test_a_damaged_file_is_ignored_with_one_line(
    content: str, tmp_path: Path, peers: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "peers.json"
    path.write_bytes(os.fsencode(content.replace("PEER", peers[0])))
    with caplog.at_level(logging.WARNING):
        known = KnownPeers(path)
    assert known.addresses() == {}
    assert caplog.messages == [f"{path}, the list of peers met before, is damaged; going on without it"]


def test_a_file_that_cannot_be_written_is_said_once(
    tmp_path: Path, peers: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "nowhere" / "peers.json"
    known = KnownPeers(path)
    ages = iter((1.0, 0.0))

    async def keep() -> None:
        known.keep(lambda: {peers[0]: ([ADDRESS], next(ages))})
        known._write()
        await known.close()

    asyncio.run(keep())
    assert caplog.messages == [f"{path}, the list of peers met before, cannot be written: No such file or directory"]
