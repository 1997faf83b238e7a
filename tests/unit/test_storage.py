"""The records a node keeps for others: bounded, and not to be pushed out by replays."""

from __future__ import annotations

import pytest

from prime_p2p.network import _hivemind, dropped, storage
from prime_p2p.network import clock as swarm_clock
from prime_p2p.network._hivemind import DHTID
from prime_p2p.network.storage import RecordStorage


def key(name: object) -> DHTID:
    return DHTID.generate(str(name))


def kept(records: RecordStorage, name: object) -> dict[str, bytes]:
    found = records.get(key(name))
    return {} if found is None else {peer: value for peer, (value, _) in found.value.items()}


class Clock:
    time = 1.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(_hivemind.timed_storage, "get_dht_time", clock)
    monkeypatch.setattr(swarm_clock, "now", clock)
    return clock


@pytest.fixture
def records(now: Clock) -> RecordStorage:
    return RecordStorage()


SOON = 1000.0


def test_the_newest_record_of_each_peer_is_kept(records: RecordStorage) -> None:
    assert records.store_subkey(key("run"), "alice", b"1", SOON)
    assert records.store_subkey(key("run"), "bob", b"1", SOON)
    assert records.store_subkey(key("run"), "alice", b"2", SOON + 1)
    assert kept(records, "run") == {"alice": b"2", "bob": b"1"}
    assert not records.store_subkey(key("run"), "alice", b"gone", 0.5)
    found = records.get(key("run"))
    assert found is not None
    assert found.expiration_time == SOON + 1


def test_a_replayed_record_neither_displaces_the_newer_one_nor_leaves_a_trace(
    records: RecordStorage, now: Clock
) -> None:
    old = 2.0
    records.store_subkey(key("run"), "alice", b"old", old)
    records.store_subkey(key("run"), "alice", b"new", SOON)
    for _ in range(1000):
        assert not records.store_subkey(key("run"), "alice", b"old", old)
        assert not records.store_subkey(key("run"), "alice", b"new", SOON)
    now.time = 3.0
    assert kept(records, "run") == {"alice": b"new"}
    assert len(records.data[key("run")].value.expiration_heap) < 10


def test_a_record_that_is_renewed_for_ever_leaves_few_traces(records: RecordStorage) -> None:
    for number in range(5000):
        assert records.store_subkey(key("run"), "alice", b"1", SOON + number)
    assert len(records.expiration_heap) < 200
    assert len(records.data[key("run")].value.expiration_heap) < 200
    assert kept(records, "run") == {"alice": b"1"}


def test_a_peer_has_so_many_records(records: RecordStorage) -> None:
    stored = [records.store_subkey(key(number), "alice", b"1", SOON) for number in range(100)]
    assert sum(stored) == storage.MOST_OF_A_PEER
    assert records.store_subkey(key(0), "alice", b"2", SOON + 1)  # may be renewed
    assert records.store_subkey(key(99), "bob", b"1", SOON)
    assert dropped.counts() == {"record": 100 - storage.MOST_OF_A_PEER}


def test_a_key_has_so_many_records_and_bytes(records: RecordStorage) -> None:
    for number in range(storage.MOST_OF_A_KEY):
        assert records.store_subkey(key("run"), f"peer-{number}", b"1", SOON)
    assert not records.store_subkey(key("run"), "one more", b"1", SOON)
    assert records.store_subkey(key("other"), "one more", b"1", SOON)
    large = bytes(4096)
    stored = [records.store_subkey(key("large"), f"peer-{number}", large, SOON) for number in range(300)]
    assert sum(stored) == storage.MOST_BYTES_OF_A_KEY // len(large)


def test_there_are_so_many_keys_and_bytes_in_all(records: RecordStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(storage.MOST_KEYS):
        assert records.store_subkey(key(number), f"peer-{number}", b"1", SOON)
    assert not records.store_subkey(key("one more"), "bob", b"1", SOON)
    assert records.store_subkey(key(0), "bob", b"1", SOON)
    monkeypatch.setattr(storage, "MOST_BYTES", storage.MOST_KEYS + 500)
    assert not records.store_subkey(key(0), "carol", bytes(600), SOON)
    assert records.store_subkey(key(0), "carol", bytes(400), SOON)


def test_what_expires_makes_room(records: RecordStorage, now: Clock) -> None:
    soon = 2.0
    for number in range(storage.MOST_KEYS):
        records.store_subkey(key(number), f"peer-{number}", b"1", soon)
    assert not records.store_subkey(key("one more"), "bob", b"1", SOON)
    now.time = 3.0
    assert records.store_subkey(key("one more"), "bob", b"1", SOON)


def test_what_expires_makes_room_for_as_many_bytes(
    records: RecordStorage, now: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "MOST_BYTES", 1000)
    soon = 2.0
    assert records.store_subkey(key("short"), "alice", bytes(300), soon)
    assert records.store_subkey(key("long"), "alice", bytes(300), soon)
    assert records.store_subkey(key("long"), "alice", bytes(600), SOON)  # in place of the one before
    assert not records.store_subkey(key("other"), "bob", bytes(101), SOON)
    assert records.store_subkey(key("other"), "bob", bytes(100), SOON)
    now.time = 3.0
    assert not records.store_subkey(key("other"), "carol", bytes(301), SOON)
    assert records.store_subkey(key("other"), "carol", bytes(300), SOON)
