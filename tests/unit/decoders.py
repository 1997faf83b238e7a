"""Everything that makes something of bytes which another peer sent, each with what it may raise and with good bytes.

For the tests of hostile bytes, and for ``scripts/fuzz_decoders.py``, which runs them for longer. No torch in here.
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
from blake3 import blake3
from certificates import ANNE, BOB, certificate
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message import DecodeError

from prime_p2p.agreement import first_difference
from prime_p2p.allreduce import butterfly
from prime_p2p.allreduce.codec import BlockVector
from prime_p2p.bulletin import messages as watching
from prime_p2p.contributions import messages as contributions
from prime_p2p.contributions.messages import WrongAnswer
from prime_p2p.errors import BadInput
from prime_p2p.monitor.events import EventReader
from prime_p2p.monitor.text import status_table
from prime_p2p.network import clock, daemon, dial_back
from prime_p2p.network._hivemind import DHTID, DHTRecord, DictionaryDHTValue, PeerID, dht_pb2
from prime_p2p.network.calls import BadCall, check_answer, check_request, records_in
from prime_p2p.network.frames import PREFIX_SIZE, FrameError, Message, Schema
from prime_p2p.network.identity import Identity
from prime_p2p.network.records import PREFIX, BadRecord, SignedRecords, pack, unpack
from prime_p2p.outer import journal
from prime_p2p.outer.journal import JournalEntry, read_update
from prime_p2p.public.admission import Invitation, invited_until
from prime_p2p.public.manifest import BadManifest, ChangeEntry, Manifest, Seal, SignedManifest
from prime_p2p.recipe import Recipe
from prime_p2p.state import messages as state
from prime_p2p.swarm import membership
from prime_p2p.swarm import messages as say
from prime_p2p.swarm.certificate import BadCertificate, Certificate

ALICE = Identity(Ed25519PrivateKey.from_private_bytes(bytes(32)), Path("alice"))
ALICE_ID = PeerID.from_base58(ALICE.peer_id)
KEY = DHTID.generate(PREFIX + "run/peers").to_bytes()
SUBKEY = msgpack.packb(ALICE.peer_id)
PLACE = dht_pb2.NodeInfo(node_id=DHTID.generate(ALICE.peer_id).to_bytes())


MANIFEST = SignedManifest.sign(
    Manifest(
        name="tiny",
        author=ALICE.peer_id,
        sequence=1,
        issued_at=1.0,
        recipe=Recipe.load(Path(__file__).parents[2] / "peers" / "tiny.toml").model_dump(mode="json"),
        initial_state=bytes(32),
        changes=[ChangeEntry(at=3, values={"inner.learning_rate": 0.1}, phase="pause")],
    ),
    ALICE,
)
INVITATION = Invitation.make(MANIFEST.manifest.run, 2.0**40, ALICE)


NEWS_LINES = (
    watching.line(
        "outer_step",
        {
            "outer_step": 3,
            "digest": "ab" * 32,
            "group": [ALICE.peer_id],
            "weights": [10],
            "attempts": 1,
            "train_loss": 2.5,
            "tokens": 10,
            "bytes_sent": 100,
            "bytes_received": 200,
            "seconds": {"inner": 3.0, "total": 4.0},
            "dropped": {"frame": 1},
        },
    ),
    watching.line("missed", {"outer_step": 3}),
    watching.line("now", {"outer_step": 3, "inner_step": 1, "inner_steps": 9, "loss": 2.5, "state": "training"}),
)


@dataclass(frozen=True)
class Decoder:
    """``decode(bytes)`` returns something, or raises one of ``errors``; of ``good`` bytes it makes something."""

    decode: Callable[[bytes], object]
    good: tuple[bytes, ...]
    errors: tuple[type[Exception], ...] = ()


def frames(schema: Schema, *good: Message) -> Decoder:
    """Of whole frames, whose payload is not there yet."""

    def decode(data: bytes) -> Message:
        header_length, payload_length = schema.decode_prefix(data[:PREFIX_SIZE])
        return schema.decode(data[PREFIX_SIZE : PREFIX_SIZE + header_length], payload_length)

    return Decoder(decode, tuple(schema.encode(message) for message in good), (FrameError,))


def headers(schema: Schema, *good: Message) -> Decoder:
    return Decoder(schema.decode, tuple(schema.encode(message)[PREFIX_SIZE:] for message in good), (FrameError,))


def signed(body: bytes, expiration: float) -> bytes:
    """A value of the DHT that its peer has signed, whatever is in it."""
    return SignedRecords(ALICE).sign_value(DHTRecord(KEY, SUBKEY, body, expiration))


def _signed_record(body: bytes) -> object:
    expiration = clock.now() + 20.0
    return unpack(DHTRecord(KEY, SUBKEY, signed(body, expiration), expiration))


def _dictionary(data: bytes) -> object:
    count = records_in(data)
    unpacked = DictionaryDHTValue.unpackb(msgpack.unpackb(data).data)  # as hivemind does next
    assert len(unpacked.data) <= count
    return unpacked


def dictionary(*items: tuple[Any, ...]) -> bytes:
    """A packed dictionary of records, as hivemind packs them."""
    content = msgpack.packb([float("inf"), 9.0, [list(item) for item in items]])
    packed: bytes = msgpack.packb(msgpack.ExtType(0x50, content))
    return packed


def nested(depth: int, code: int = 0x40) -> bytes:
    """Values within values, which hivemind unpacks until the stack is full."""
    packed: bytes = msgpack.packb(msgpack.ExtType(code, b"\x90"))
    for _ in range(depth):
        packed = msgpack.packb(msgpack.ExtType(code, b"\x91" + packed))
    return packed


def request(kind: Any, **fields: Any) -> bytes:
    packed: bytes = kind(peer=PLACE, **fields).SerializeToString()
    return packed


def _requests(kind: Any, *good: bytes) -> Decoder:
    return Decoder(lambda data: check_request(kind.FromString(data), ALICE_ID), good, (DecodeError, BadCall))


def _answers(kind: Any, *good: bytes) -> Decoder:
    return Decoder(lambda data: check_answer(kind.FromString(data), ALICE_ID), good, (DecodeError, BadCall))


def _heartbeat(data: bytes) -> object:
    """A heartbeat as it comes out of a record, shown to somebody as ``status`` does."""
    try:
        fields = msgpack.unpackb(data, strict_map_key=True, max_array_len=1024, max_map_len=1024)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    beat = membership.read_heartbeat(ALICE.peer_id, fields) if isinstance(fields, dict) else None
    if beat is not None:
        shown = {"run": "run", "peer_id": ALICE.peer_id, "outer_step": beat.step, "digest": beat.digest.hex()}
        shown |= {"age_s": 1.0, "tokens": beat.tokens}
        table = status_table([shown | beat.model_dump(include={"name", "state", "addresses"})])
        assert len(table.splitlines()) == 2
        assert table.replace("\n", "").isprintable()
        assert beat.name.isprintable()
        assert beat.location is None or (abs(beat.location[0]) <= 90 and abs(beat.location[1]) <= 180)
        assert beat.rank <= (2**63, bytes([255] * 32))
    return beat


def _description(payload: bytes) -> object:
    """What a peer says that the run is, compared with ours as when we join."""
    theirs = state.read_description(ALICE.peer_id, payload)
    difference = first_difference({"model": {"layers": 2}, "inner_steps": 3}, theirs)
    assert difference is None or (len(difference) < 400 and difference.isprintable())
    try:
        return Recipe.from_shared(theirs)
    except BadInput as error:
        reason = str(error)
    assert len(reason.splitlines()) == 1
    return None


def _journal_file(data: bytes) -> object:
    """An update in a file, whose header has the hash that belongs to it."""
    size = journal._FIELDS.size
    fields = data[:size].ljust(size, b"\0")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "000000000003.update"
        path.write_bytes(fields + blake3(fields).digest() + data[size:])
        return read_update(path)


def update_bytes() -> bytes:
    update = BlockVector.empty(2000)
    entry = JournalEntry(3, bytes(32), bytes(32), 10, update.n, update.bits)
    head = journal._head(entry, update)[: journal._FIELDS.size]
    return head + b"".join(bytes(buffer) for buffer in update.buffers())


def _address(data: bytes) -> object:
    """An address that a peer says it listens at, and what is dialled for it."""
    for text in daemon._decoded([data]):
        try:
            daemon._encoded(text)
        except (ValueError, LookupError):
            continue
    return None


def _sealed_manifest(data: bytes) -> object:
    """What the author has signed, whatever it is."""
    return SignedManifest.opened(data, Seal.of(data, MANIFEST.manifest, ALICE), MANIFEST.manifest.run)


def _seal(data: bytes) -> object:
    fields = _map(data)
    return Seal.from_fields(fields, MANIFEST.manifest.run)


def _map(data: bytes) -> dict[str, Any]:
    """What a record may hold."""
    try:
        fields = msgpack.unpackb(data, strict_map_key=True)
    except (ValueError, TypeError, msgpack.UnpackException):
        return {}
    return fields if isinstance(fields, dict) else {}


def _credential(data: bytes) -> object:
    return invited_until(data, MANIFEST.manifest.run, ALICE.peer_id, ALICE.peer_id)


def _certificate(data: bytes) -> object:
    """A certificate, and whether all have signed it."""
    read = Certificate.from_bytes(data, CERTIFICATE.group.run)
    assert read.to_bytes() == data
    read.check()
    return read


def _events(data: bytes) -> object:
    return EventReader().feed(data + b"\n")


_PEER, _DIGEST = ALICE.peer_id, bytes(range(32))
CERTIFICATE = certificate(3, {ANNE: 1, BOB: 2})
_BEAT = {"step": 3, "digest": _DIGEST, "tokens": 5, "state": "training", "name": "Ä", "addresses": ["/ip4/192.0.2.1"]}
_BEAT |= {"location": [52, 13]}
_STORE = {"keys": [KEY], "subkeys": [SUBKEY], "values": [bytes(80)], "expiration_time": [9.0], "in_cache": [False]}
_DICTIONARY = {**_STORE, "subkeys": [b""], "values": [dictionary((_PEER, bytes(80), 9.0))]}
_FOUND = dht_pb2.FindResult(
    type=dht_pb2.FOUND_DICTIONARY,
    value=dictionary((_PEER, bytes(80), 9.0)),
    nearest_node_ids=[PLACE.node_id],
    nearest_peer_ids=[ALICE_ID.to_bytes()],
)

CONTROL = (
    say.Join(
        step=1, digest=_DIGEST, nonce=2, weight=3, bandwidth=4.0, terms=b"terms", suspects=[_PEER], awaited=[_PEER]
    ),
    say.Begin(
        step=1,
        digest=_DIGEST,
        members=[say.GroupMember(peer_id=_PEER, nonce=1, weight=2, bandwidth=3.0)],
    ),
    say.Vote(group_id=_DIGEST, update_digest=_DIGEST, signature=bytes(64)),
    say.Doubt(group_id=_DIGEST, lost={_PEER: [_PEER]}),
    say.Ping(),
)  # fmt: skip
STATE = (
    state.AskUpdate(step=1, digest=_DIGEST),
    state.Update(step=1, before=_DIGEST, after=_DIGEST, tokens=1, bits=8, ahead=1),
    state.Offers(snapshots=[_DIGEST], steps=[1], first=0, history=[_DIGEST]),
)
DATA = (butterfly.Hello(group_id=_DIGEST, lane=1), butterfly.Reduced(index=3))

DECODERS = {
    "control frame": frames(say.CONTROL, *CONTROL),
    "control header": headers(say.CONTROL, *CONTROL),
    "state frame": frames(state.STATE, *STATE),
    "state header": headers(state.STATE, *STATE),
    "data frame": frames(butterfly.DATA, *DATA),
    "data header": headers(butterfly.DATA, *DATA),
    "record": Decoder(_signed_record, (msgpack.packb(pack("run/peers", _BEAT)),), (BadRecord,)),
    "dictionary": Decoder(_dictionary, (dictionary((_PEER, b"value", 9.0)),), (BadCall,)),
    "store": _requests(dht_pb2.StoreRequest, request(dht_pb2.StoreRequest, **_STORE)),
    "store of a dictionary": _requests(dht_pb2.StoreRequest, request(dht_pb2.StoreRequest, **_DICTIONARY)),
    "find": _requests(dht_pb2.FindRequest, request(dht_pb2.FindRequest, keys=[KEY])),
    "ping": _requests(dht_pb2.PingRequest, request(dht_pb2.PingRequest, validate=True)),
    "found": _answers(dht_pb2.FindResponse, request(dht_pb2.FindResponse, results=[_FOUND])),
    "stored": _answers(dht_pb2.StoreResponse, request(dht_pb2.StoreResponse, store_ok=[True])),
    "pong": _answers(dht_pb2.PingResponse, request(dht_pb2.PingResponse, dht_time=9.0, available=True)),
    "heartbeat": Decoder(_heartbeat, (msgpack.packb(_BEAT),)),
    "description": Decoder(_description, (json.dumps({"model": {"layers": 2}}).encode(),), (state.WrongBytes,)),
    "journal": Decoder(_journal_file, (update_bytes(),), (OSError, ValueError)),
    "address": Decoder(_address, (daemon._encoded("/ip4/192.0.2.1/tcp/4000/p2p/" + _PEER),)),
    "manifest": Decoder(
        lambda data: SignedManifest.from_bytes(data, MANIFEST.manifest.run), (MANIFEST.to_bytes(),), (BadManifest,)
    ),
    "sealed manifest": Decoder(_sealed_manifest, (MANIFEST.body,), (BadManifest,)),
    "seal": Decoder(_seal, (msgpack.packb(MANIFEST.seal.to_fields()),)),
    "credential": Decoder(_credential, (INVITATION.credential(ALICE.peer_id),)),
    "certificate": Decoder(_certificate, (CERTIFICATE.to_bytes(),), (BadCertificate,)),
    "certificates": Decoder(
        contributions.unpack_certificates, (contributions.pack_certificates([b"one", b"two"]),), (WrongAnswer,)
    ),
    "held": Decoder(contributions.unpack_held, (contributions.pack_held({3: bytes(16)}),), (WrongAnswer,)),
    "contributions header": headers(
        contributions.CONTRIBUTIONS, contributions.AskHeld(since=3), contributions.AskCertificates(steps=[3])
    ),
    "dial back": frames(dial_back.SCHEMA, dial_back.Request(addresses=["/ip4/192.0.2.1/tcp/4000"])),
    "news frame": frames(
        watching.NEWS, watching.AskNews(session=b"", after=1), watching.NewsLines(session=b"", last=1)
    ),
    "news": Decoder(watching.read, (watching.packed(NEWS_LINES),), (FrameError,)),
    "news lines": Decoder(lambda data: watching.read(watching.packed([data])), NEWS_LINES, (FrameError,)),
    "event": Decoder(_events, (b'{"event": "log", "text": "hello"}',)),
}


def prefix(header_length: int, payload_length: int) -> bytes:
    return struct.pack(">IQ", header_length, payload_length)
