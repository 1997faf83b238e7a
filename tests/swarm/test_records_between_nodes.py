"""Records between nodes on loopback: found by all, forged by none."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from nodes import PATIENCE, Swarm, address, run, until

from prime_p2p.network import board, clock
from prime_p2p.network._hivemind import DHTID, DHTRecord, PeerID
from prime_p2p.network.identity import Identity
from prime_p2p.network.node import Node
from prime_p2p.network.records import PREFIX, SignedRecords, pack


def test_every_node_finds_every_record_in_its_latest_form_until_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(swarm: Swarm) -> None:
        one = await swarm.node("one")
        assert not await one.publish("key", {"n": 0}, ttl=60)  # there is nobody else to take it
        assert await one.lookup("key") == {one.peer_id: {"n": 0}}
        two = await swarm.node("two", await address(one))
        assert await one.publish("key", {"n": 1, "bytes": b"\x00\xff"}, ttl=60)
        assert await two.publish("key", {"n": 2}, ttl=60)
        expected = {one.peer_id: {"n": 1, "bytes": b"\x00\xff"}, two.peer_id: {"n": 2}}
        assert await one.lookup("key") == expected
        assert await two.lookup("key") == expected
        assert await two.lookup("other key") == {}
        monkeypatch.setattr(board, "clock", SimpleNamespace(now=lambda: clock.now() + 61))
        assert await one.lookup("key") == {}
        assert await two.lookup("key") == {}

    run(test)


def test_a_record_too_long_or_for_too_long_is_not_published() -> None:
    async def test(swarm: Swarm) -> None:
        node = await swarm.node("node")
        with pytest.raises(ValueError, match="at most 4096"):
            await node.publish("key", {"fill": bytes(5000)}, ttl=60)
        with pytest.raises(ValueError, match="for 1e\\+09 s"):
            await node.publish("key", {}, ttl=1e9)
        assert await node.lookup("key") == {}

    run(test)


def forged(author: Identity, victim: str, key: str, ttl: float = 60.0) -> DHTRecord:
    """A record under `key` in the name of `victim`, signed by `author`."""
    body = msgpack.packb(pack(key, {"forged": True}))
    record = DHTRecord(DHTID.generate(PREFIX + key).to_bytes(), msgpack.packb(victim), body, clock.now() + ttl)
    signed = SignedRecords(author).sign_value(record)
    return DHTRecord(record.key, record.subkey, signed, record.expiration_time)


def test_a_record_forged_in_the_name_of_another_peer_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async def test(swarm: Swarm) -> None:
        alice = await swarm.node("alice")
        bob = await swarm.node("bob", await address(alice))
        mallory = await swarm.node("mallory", await address(alice))
        for node in (alice, bob, mallory):
            await node.publish("key", {"name": node.peer_id}, ttl=30)
        truth = {node.peer_id: {"name": node.peer_id} for node in (alice, bob, mallory)}
        key_id, record = DHTID.generate(PREFIX + "key"), forged(mallory.identity, alice.peer_id, "key")
        protocol = mallory._board._node.protocol

        for peer in (alice, bob):
            stored = await protocol.call_store(
                PeerID.from_base58(peer.peer_id),
                [key_id],
                [record.value],
                expiration_time=[record.expiration_time],
                subkeys=[alice.peer_id],
            )
            assert stored == [False]
        assert "dropped a record: not signed by the peer of its subkey" in caplog.messages
        assert await bob.lookup("key") == truth

        # Nor does anybody believe it when Mallory's own node hands it out.
        protocol.storage.store_subkey(key_id, alice.peer_id, record.value, record.expiration_time)
        assert await bob.lookup("key") == truth
        assert await alice.lookup("key") == truth

    run(test)


def test_a_record_sent_for_the_cache_does_not_hide_the_others() -> None:
    async def test(swarm: Swarm) -> None:
        alice = await swarm.node("alice")
        bob = await swarm.node("bob", await address(alice))
        mallory = await swarm.node("mallory", await address(alice))
        await alice.publish("key", {"name": "alice"}, ttl=30)
        key_id = DHTID.generate(PREFIX + "key")
        record = forged(mallory.identity, mallory.peer_id, "key", ttl=3600)
        for peer in (alice, bob):
            stored = await mallory._board._node.protocol.call_store(
                PeerID.from_base58(peer.peer_id),
                [key_id],
                [record.value],
                expiration_time=[record.expiration_time],
                subkeys=[mallory.peer_id],
                in_cache=True,
            )
            assert stored == [True]
        expected = {alice.peer_id: {"name": "alice"}, mallory.peer_id: {"forged": True}}
        late = await swarm.node("late", await address(bob))
        for node in (alice, bob, late):
            assert await node.lookup("key") == expected

    run(test)


def test_eight_nodes_that_join_at_the_same_moment_see_each_others_records(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[DHTID] = []
    ask = board.Board._ask

    async def noted(self: board.Board, walk: Any, key_id: DHTID, peer: PeerID) -> dict[DHTID, PeerID] | None:
        asked.append(key_id)
        return await ask(self, walk, key_id, peer)

    async def test(swarm: Swarm) -> None:
        bootstrap = await swarm.node("bootstrap")
        first = await address(bootstrap)

        async def join(name: str) -> Node:
            node = await swarm.node(name, first)
            await node.publish("names", {"name": name}, ttl=PATIENCE)
            return node

        nodes = await asyncio.gather(*(join(f"node-{number}") for number in range(8)))
        expected = {node.peer_id for node in nodes}

        async def all_seen() -> bool:
            found = await asyncio.gather(*(node.lookup("names") for node in nodes))
            return all(set(records) == expected for records in found)

        await until(all_seen)

        async def all_seen_in_one_copy() -> bool:
            await asyncio.gather(*(node.publish("names", {"name": "again"}, ttl=PATIENCE) for node in nodes))
            asked.clear()
            found = await asyncio.gather(*(node.lookup("names", copies=1) for node in nodes))
            return all(set(records) == expected for records in found)

        monkeypatch.setattr(board.Board, "_ask", noted)
        await until(all_seen_in_one_copy)
        assert asked.count(DHTID.generate(PREFIX + "names")) == len(nodes)

    run(test)
