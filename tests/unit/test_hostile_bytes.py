"""Bytes that strangers send: each decoder makes something of them or raises its one error, in little memory."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import msgpack
import pytest
from blake3 import blake3
from decoders import ALICE, ALICE_ID, DECODERS, KEY, PLACE, SUBKEY, Decoder, dictionary, nested, prefix
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_p2p.network._hivemind import DHTID, DHTRecord, PeerID, dht_pb2
from prime_p2p.network.calls import MAX_CALL, MOST_KEYS, MOST_RECORDS, BadCall, check_answer, check_request, records_in
from prime_p2p.network.frames import MAX_HEADER
from prime_p2p.network.records import BadRecord, unpack
from prime_p2p.state import checkpoint
from prime_p2p.swarm.membership import read_heartbeat

MEMORY = 16 << 20  # bytes that decoding a call or a frame of the greatest length may take, above its own
EACH = settings(max_examples=40)

every_decoder = pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS.keys())

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=40)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=20)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def decode(decoder: Decoder, data: bytes) -> None:
    """Fails where anything else is raised."""
    reason = ""
    try:
        decoder.decode(data)
    except decoder.errors as error:
        reason = str(error)
    assert len(reason.splitlines()) <= 1


@every_decoder
def test_good_bytes_are_decoded(decoder: Decoder) -> None:
    for good in decoder.good:
        decoder.decode(good)


@every_decoder
def test_any_bytes_are_something_or_refused_with_the_one_error(decoder: Decoder) -> None:
    @EACH
    @given(st.binary(max_size=200))
    def check(data: bytes) -> None:
        decode(decoder, data)

    check()


@every_decoder
def test_good_bytes_that_were_bent_are_something_or_refused_with_the_one_error(decoder: Decoder) -> None:
    @EACH
    @given(
        st.sampled_from(decoder.good),
        st.lists(st.tuples(st.integers(0), st.integers(0, 3), st.binary(max_size=9)), min_size=1, max_size=4),
    )
    def check(good: bytes, changes: list[tuple[int, int, bytes]]) -> None:
        data = bytearray(good)
        for place, removed, added in changes:
            at = place % (len(data) + 1)
            data[at : at + removed] = added
        decode(decoder, bytes(data))

    check()


@every_decoder
def test_any_values_are_something_or_refused_with_the_one_error(decoder: Decoder) -> None:
    """Also as fields of messages, and as what JSON can say of them."""

    @EACH
    @given(values, st.sampled_from(["join", "begin", "doubt", "update", "offers", "hello", "log", "progress"]))
    def check(value: Any, kind: str) -> None:
        for data in (msgpack.packb(value), msgpack.packb([kind, value]), json.dumps(value, default=str).encode()):
            decode(decoder, data)
        decode(decoder, json.dumps({"event": kind, "text": value, "outer_step": value}, default=str).encode())

    check()


@every_decoder
def test_each_field_of_a_good_message_may_be_anything(decoder: Decoder) -> None:
    try:
        good = [msgpack.unpackb(one) for one in decoder.good]
    except ValueError:
        return  # it is no msgpack that it decodes
    kinds = [one for one in good if isinstance(one, list) and len(one) == 2]
    maps = [one for one in good if isinstance(one, dict)]
    arrays = [one for one in good if isinstance(one, list) and len(one) != 2]

    @EACH
    @given(st.data())
    def check(data: st.DataObject) -> None:
        for kind, fields in kinds:
            for name in fields:
                decode(decoder, msgpack.packb([kind, fields | {name: data.draw(values)}]))
        for fields in maps:
            for name in fields:
                decode(decoder, msgpack.packb(fields | {name: data.draw(values)}))
        for items in arrays:
            for place in range(len(items)):
                decode(decoder, msgpack.packb([*items[:place], data.draw(values), *items[place + 1 :]]))

    check()


@every_decoder
@pytest.mark.parametrize(
    "data",
    [
        b"\x91" * 60_000,  # arrays within arrays
        b"\x81\xa1a" * 20_000,
        b"[" * 60_000,
        b'{"a":' * 12_000,
        b"\xdd\xff\xff\xff\xff" * 10_000,  # arrays that claim four thousand million items
        b"\xdf\xff\xff\xff\xff" * 10_000,
        b"\xc6\xff\xff\xff\xff",  # two gigabytes and more of bytes
        b"\xdc\xff\xff" * 10_000,
        nested(3000),
        nested(3000, 0x50),
        b"\x04\xc0\x00\x02\x01\x06\x0f\xa0\xa5\x03" + b"\x9b" * 60,  # an address of more bytes than there are numbers
        prefix(2**32 - 1, 0) + b"x",
        prefix(10, 2**63),
        prefix(MAX_HEADER, 0) + b"\x91" * MAX_HEADER,
        b"9" * 60_000,
        b"\xff" * 60_000,
    ],
    ids=lambda data: f"{data[:4].hex()}-{len(data)}",
)
def test_what_is_deep_or_claims_much_takes_little_memory(decoder: Decoder, data: bytes) -> None:
    tracemalloc.start()
    try:
        decode(decoder, data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY


# ---- calls of the DHT


def refused(request: Any, sender: PeerID = ALICE_ID) -> str:
    with pytest.raises(BadCall) as reason:
        check_request(request, sender)
    return str(reason.value)


def refused_answer(answer: Any) -> str:
    with pytest.raises(BadCall) as reason:
        check_answer(answer, ALICE_ID)
    return str(reason.value)


def store(subkey: bytes, value: bytes, count: int = 1) -> Any:
    return dht_pb2.StoreRequest(
        keys=[KEY] * count,
        subkeys=[subkey] * count,
        values=[value] * count,
        expiration_time=[9.0] * count,
        in_cache=[False] * count,
        peer=PLACE,
    )


def test_values_within_values_are_no_dictionary_of_records() -> None:
    """Unpacked as hivemind does, some hundred bytes of them end the process."""
    assert refused(store(b"", nested(1000))) == "not a dictionary"
    assert refused(store(b"", dictionary((ALICE.peer_id, msgpack.ExtType(0x40, nested(10)), 9.0)))) == (
        "not a record in a dictionary"
    )
    assert refused(store(nested(2), bytes(80))) == "a subkey that is no peer id"
    answer = dht_pb2.FindResponse(results=[dht_pb2.FindResult(type=dht_pb2.FOUND_DICTIONARY, value=nested(1000))])
    assert refused_answer(answer) == "not a dictionary"


def test_a_call_brings_so_many_records_and_looks_for_so_many_keys() -> None:
    record = (ALICE.peer_id, bytes(80), 9.0)
    assert check_request(store(b"", dictionary(*[record] * MOST_RECORDS)), ALICE_ID) == MOST_RECORDS
    assert refused(store(b"", dictionary(*[record] * MOST_RECORDS), count=2)) == f"more than {MOST_RECORDS} records"
    assert check_request(store(SUBKEY, bytes(80), MOST_RECORDS), ALICE_ID) == MOST_RECORDS
    assert "keys" in refused(store(SUBKEY, bytes(80), MOST_RECORDS + 1))
    assert check_request(dht_pb2.FindRequest(keys=[KEY] * MOST_KEYS), ALICE_ID) == 0
    assert "keys" in refused(dht_pb2.FindRequest(keys=[KEY] * (MOST_KEYS + 1)))
    assert "keys" in refused(dht_pb2.FindRequest(keys=[bytes(1000)]))


def test_a_peer_has_one_place_in_the_dht_and_does_not_choose_it() -> None:
    other = dht_pb2.NodeInfo(node_id=bytes(20))
    for kind in (dht_pb2.PingRequest, dht_pb2.FindRequest, dht_pb2.StoreRequest):
        assert refused(kind(peer=other)) == "a place in the DHT that is not its own"
        assert check_request(kind(), ALICE_ID) == 0  # one that wants no place
    assert refused_answer(dht_pb2.PingResponse(peer=other)) == "a place in the DHT that is not its own"


def test_neighbours_are_named_with_their_own_places_and_short_ids() -> None:
    def named(node: bytes, peer: bytes, count: int = 1) -> Any:
        found = dht_pb2.FindResult(nearest_node_ids=[node] * count, nearest_peer_ids=[peer] * count)
        return dht_pb2.FindResponse(results=[found])

    check_answer(named(PLACE.node_id, ALICE_ID.to_bytes()), ALICE_ID)
    assert refused_answer(named(bytes(20), ALICE_ID.to_bytes())) == "a neighbour in a place that is not its own"
    assert refused_answer(named(bytes(20), bytes(MAX_CALL))) == "a neighbour in a place that is not its own"
    assert refused_answer(named(PLACE.node_id, ALICE_ID.to_bytes(), 100)) == "100 places of 100 neighbours"


def test_a_record_with_a_long_key_or_subkey_is_not_kept_to_verify_it() -> None:
    for key, subkey in ((bytes(1 << 20), SUBKEY), (KEY, msgpack.packb("x" * (1 << 20)))):
        with pytest.raises(BadRecord, match="too long"):
            unpack(DHTRecord(key, subkey, bytes(100), 9.0))


def test_a_dictionary_for_which_no_record_expires_or_whose_size_is_set_is_refused() -> None:
    for expiration in (float("nan"), float("inf"), 9):
        with pytest.raises(BadCall):
            records_in(dictionary((ALICE.peer_id, b"value", expiration)))
    with pytest.raises(BadCall):
        records_in(msgpack.packb(msgpack.ExtType(0x50, msgpack.packb([-1, 9.0, []]))))


def test_the_place_of_a_peer_is_the_one_that_nodes_take() -> None:
    assert PLACE.node_id == DHTID.generate(ALICE.peer_id).to_bytes()


# ---- heartbeats


@pytest.mark.parametrize(
    "field",
    [
        {"name": "\x1b[2J"},
        {"name": "two\nlines"},
        {"name": "\u202egnp.exe"},  # what follows is shown from right to left
        {"name": "x" * 65},
        {"state": "\x07"},
        {"addresses": ["/ip4/\r"]},
        {"addresses": ["/ip4/192.0.2.1"] * 9},
        {"step": -1},
        {"step": 2**63},
        {"step": True},
        {"tokens": 1.5},
        {"ready_at": float("nan")},
        {"ready_at": float("inf")},
        {"sent_at": -1.0},
        {"sent_at": 9e10},  # which would be the newest for ever
        {"digest": bytes(33)},
        {"digest": "x" * 32},
        {"expected": 1},
    ],
    ids=str,
)
def test_a_heartbeat_of_nonsense_is_none_and_said_in_one_line(
    field: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert read_heartbeat(ALICE.peer_id, {"name": "fine"}) is not None
    assert read_heartbeat(ALICE.peer_id, field) is None
    (line,) = caplog.messages
    assert line.startswith(f"dropped a heartbeat from {ALICE.peer_id}: ")
    assert line.isprintable()
    assert len(line) < 400


# ---- the files of a checkpoint


@EACH
@given(numbers=st.dictionaries(st.sampled_from(["version", "run", "step", "local_blake3"]), values, max_size=4))
def test_the_numbers_of_a_checkpoint_may_be_anything(tmp_path_factory: pytest.TempPathFactory, numbers: Any) -> None:
    folder = tmp_path_factory.mktemp("checkpoint")
    read_numbers(folder, json.dumps(numbers, default=str))
    read_numbers(folder, json.dumps({"version": 2} | numbers, default=str))


@pytest.mark.parametrize("text", ["[" * 60_000, "{}", "[]", "1", '""', "", "null", "\x00", '{"numbers": []}'])
def test_a_checkpoint_of_nonsense_is_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / checkpoint.NUMBERS).write_text(text)
    with pytest.raises(checkpoint.DAMAGED):
        checkpoint.read(tmp_path, 1)


def read_numbers(folder: Path, numbers: str) -> None:
    plain = json.loads(numbers)
    proof = blake3(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    (folder / checkpoint.NUMBERS).write_text(json.dumps({"blake3": proof, "numbers": plain}))
    with pytest.raises((*checkpoint.DAMAGED, checkpoint.NewerVersion)):
        checkpoint.read(folder, 1)
