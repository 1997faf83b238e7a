"""Signed records: nobody speaks for somebody else, and nothing signed can be bent."""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_p2p.network._hivemind import DHTID, DHTRecord
from prime_p2p.network.identity import Identity
from prime_p2p.network.records import MAX_RECORD, MAX_TTL, PREFIX, BadRecord, SignedRecords, pack, unpack


@pytest.fixture(scope="module")
def alice(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return Identity.load_or_create(tmp_path_factory.mktemp("alice") / "key")


@pytest.fixture(scope="module")
def bob(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return Identity.load_or_create(tmp_path_factory.mktemp("bob") / "key")


def signed(
    identity: Identity,
    body: Any,
    key: str = PREFIX + "run/peers",
    subkey: bytes | None = None,
    ttl: float = 20.0,
) -> DHTRecord:
    """A record of `body`, msgpack, under `key`, in the name of `subkey` (that of `identity` unless given)."""
    name = msgpack.packb(identity.peer_id) if subkey is None else subkey
    record = DHTRecord(DHTID.generate(key).to_bytes(), name, msgpack.packb(body), time.time() + ttl)
    return dataclasses.replace(record, value=SignedRecords(identity).sign_value(record))


def refused(record: DHTRecord) -> str:
    with pytest.raises(BadRecord) as reason:
        unpack(record)
    return str(reason.value)


values = st.dictionaries(
    st.text(max_size=8), st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=20), max_size=8
)


@given(value=values)
def test_a_signed_record_is_read_with_its_peer(alice: Identity, value: dict[str, Any]) -> None:
    record = signed(alice, pack("run/peers", value))
    assert unpack(record) == (alice.peer_id, value)
    assert SignedRecords(alice).validate(record)
    assert msgpack.unpackb(SignedRecords(alice).strip_value(record)) == {"key": PREFIX + "run/peers", "value": value}


def test_nobody_signs_for_somebody_else(alice: Identity, bob: Identity) -> None:
    assert refused(signed(bob, pack("run/peers", {}), subkey=msgpack.packb(alice.peer_id))) == (
        "not signed by the peer of its subkey"
    )


def test_a_record_is_bound_to_its_key_subkey_and_expiration(alice: Identity, bob: Identity) -> None:
    record = signed(alice, pack("run/peers", {"step": 1}))
    elsewhere = DHTID.generate(PREFIX + "other/peers").to_bytes()
    for bent in (
        dataclasses.replace(record, key=elsewhere),
        dataclasses.replace(record, subkey=msgpack.packb(bob.peer_id)),
        dataclasses.replace(record, expiration_time=record.expiration_time + 1),
    ):
        assert refused(bent) == "not signed by the peer of its subkey"


@given(position=st.integers(0), bit=st.integers(0, 7))
def test_a_record_with_one_bit_changed_is_refused(alice: Identity, position: int, bit: int) -> None:
    record = signed(alice, pack("run/peers", {"step": 1}))
    value = bytearray(record.value)
    value[position % len(value)] ^= 1 << bit
    assert refused(dataclasses.replace(record, value=bytes(value))) == "not signed by the peer of its subkey"


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ({"key": "other", "value": {}}, "other"),  # a key that is not ours
        ({"key": PREFIX + "run", "value": {}, "more": 1}, PREFIX + "run"),
        ({"key": PREFIX + "run", "value": 1}, PREFIX + "run"),
        ({"key": PREFIX + "run"}, PREFIX + "run"),
        ({"key": 1, "value": {}}, PREFIX + "run"),
        ([1, 2], PREFIX + "run"),
        (None, PREFIX + "run"),
    ],
)
def test_only_maps_under_our_own_keys_are_taken(alice: Identity, body: Any, key: str) -> None:
    assert refused(signed(alice, body, key)) == "not a key of this kind with a map"


def test_a_record_signed_for_one_key_is_not_taken_under_another(alice: Identity) -> None:
    record = signed(alice, pack("run/peers", {}), key=PREFIX + "other")
    assert refused(record) == "stored under another key than its own"


def test_a_value_that_is_not_msgpack_is_refused(alice: Identity) -> None:
    record = DHTRecord(
        DHTID.generate(PREFIX + "run").to_bytes(), msgpack.packb(alice.peer_id), b"\xc1", time.time() + 20
    )
    record = dataclasses.replace(record, value=SignedRecords(alice).sign_value(record))
    assert refused(record) == "not msgpack"


def test_a_record_that_is_too_long_is_refused(alice: Identity) -> None:
    def sized(size: int) -> DHTRecord:
        empty = len(signed(alice, pack("run/peers", {"fill": bytes(300)})).value) - 300
        return signed(alice, pack("run/peers", {"fill": bytes(size - empty)}))

    assert len(sized(MAX_RECORD).value) == MAX_RECORD
    assert unpack(sized(MAX_RECORD))[0] == alice.peer_id
    assert refused(sized(MAX_RECORD + 1)) == "not 64 to 4096 bytes"


def test_a_record_holds_for_a_limited_time(alice: Identity) -> None:
    assert refused(signed(alice, pack("run/peers", {}), ttl=MAX_TTL + 120)) == "holds for more than 86400 s"
    assert unpack(signed(alice, pack("run/peers", {}), ttl=MAX_TTL))[0] == alice.peer_id


def test_a_record_that_expired_on_its_way_does_not_discredit_who_handed_it_on(alice: Identity) -> None:
    assert SignedRecords(alice).validate(signed(alice, pack("run/peers", {}), ttl=-5.0))


@pytest.mark.parametrize("expiration", [float("nan"), float("inf"), float("-inf"), None, "soon", 10**400, [], b"x"])
def test_an_expiration_that_is_no_time_is_refused(alice: Identity, expiration: Any) -> None:
    record = signed(alice, pack("run/peers", {}))
    assert refused(dataclasses.replace(record, expiration_time=expiration)) == "expiration is no time"


@pytest.mark.parametrize("value", [None, 1, "text", b"", bytes(64), [b"x"]])
def test_a_value_that_is_no_signed_bytes_is_refused(alice: Identity, value: Any) -> None:
    record = signed(alice, pack("run/peers", {}))
    assert refused(dataclasses.replace(record, value=value)) == "not 64 to 4096 bytes"


TEXT = st.text(st.characters(max_codepoint=127), max_size=60) | st.text(max_size=16)  # not too long as bytes, either


@given(subkey=st.binary(max_size=60) | (st.none() | st.integers(0, 9) | TEXT).map(msgpack.packb))
def test_any_other_subkey_is_refused(alice: Identity, subkey: bytes) -> None:
    record = signed(alice, pack("run/peers", {}), subkey=subkey)
    assert refused(record) in ("subkey is no peer id", "not msgpack", "not signed by the peer of its subkey")


def test_a_dropped_record_is_logged_in_one_line(alice: Identity, caplog: pytest.LogCaptureFixture) -> None:
    record = dataclasses.replace(signed(alice, pack("run/peers", {})), value=bytes(100))
    with caplog.at_level(logging.WARNING, "prime_p2p.network"):
        assert not SignedRecords(alice).validate(record)
    assert [line.getMessage() for line in caplog.records] == ["dropped a record: not signed by the peer of its subkey"]


def test_a_short_value_under_a_long_key_is_refused_too(alice: Identity) -> None:
    record = signed(alice, pack("k" * 5000, {}), key=PREFIX + "k" * 5000)
    assert refused(record) == "not 64 to 4096 bytes"
