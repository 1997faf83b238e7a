"""Signed records: what one peer says under one key of the DHT, and for how long it holds."""

import functools
import math
import struct
from typing import Any

import msgpack

from prime_p2p.network import clock, dropped
from prime_p2p.network._hivemind import DHTID, DHTRecord, RecordValidatorBase
from prime_p2p.network.identity import Identity, verify

MAX_RECORD = 4096  # bytes, signature included
MAX_TTL = 24 * 3600.0  # seconds a record may hold
PREFIX = "prime-p2p/"  # of every key
_DOMAIN = b"prime-p2p record 1\0"
_SIGNATURE = 64
_LONGEST_SUBKEY = 68  # bytes: a peer id as text, packed
_MOST_ITEMS = 1024  # of one array or map: msgpack allocates what an array claims before it has seen it
_CLOCK_SLACK = 60.0  # seconds that clocks may differ before a record with the longest ttl is taken for a longer one


class BadRecord(ValueError):
    """A record that its peer did not sign, or that is not one of ours."""


class SignedRecords(RecordValidatorBase):
    """The only values this DHT takes: msgpack maps, each signed by the peer its subkey names.

    The DHT knows a key by its hash, so the value carries the key. The signature binds key, subkey, value and
    expiration: a record can be neither moved, changed nor prolonged. Of two records of one peer the one that expires
    later wins.
    """

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def sign_value(self, record: DHTRecord) -> bytes:
        """Return `record.value`, made by `pack`, with its signature behind it."""
        return record.value + self._identity.sign(_signed(record, record.value))

    def strip_value(self, record: DHTRecord) -> bytes:
        return record.value[:-_SIGNATURE]

    def validate(self, record: DHTRecord) -> bool:
        """Whether to keep or believe a record. Never raises; says in one line why a record is dropped."""
        try:
            unpack(record)
        except BadRecord as reason:
            dropped.note("record", reason)
            return False
        return True


def pack(key: str, value: dict[str, Any]) -> dict[str, Any]:
    """Return what to store in the DHT for `value` under `key`."""
    return {"key": PREFIX + key, "value": value}


def unpack(record: DHTRecord) -> tuple[str, dict[str, Any]]:
    """Return (peer id, value) of a record from the network.

    Raises:
        BadRecord: it is malformed, too long, not signed by the peer of its subkey, or holds for too long. A record that
            has expired is not bad: one that expires on its way must not discredit the peer that hands it on.
    """
    value, expiration = record.value, record.expiration_time
    if not isinstance(value, bytes) or not _SIGNATURE < len(value) <= MAX_RECORD:
        raise BadRecord(f"not {_SIGNATURE} to {MAX_RECORD} bytes")
    if not isinstance(expiration, float) or not math.isfinite(expiration):
        raise BadRecord("expiration is no time")
    if expiration > clock.now() + MAX_TTL + _CLOCK_SLACK:
        raise BadRecord(f"holds for more than {MAX_TTL:g} s")
    if len(record.key) != DHTID.HASH_NBYTES or len(record.subkey) > _LONGEST_SUBKEY:  # they are kept with the signature
        raise BadRecord("key or subkey too long")
    peer_id = _load(record.subkey)
    if not isinstance(peer_id, str):
        raise BadRecord("subkey is no peer id")
    body, signature = value[:-_SIGNATURE], value[-_SIGNATURE:]
    if not _verify(peer_id, _signed(record, body), signature):
        raise BadRecord("not signed by the peer of its subkey")
    match _load(body):
        case {"key": str(key), "value": dict(fields), **rest} if not rest and key.startswith(PREFIX):
            if DHTID.generate(key).to_bytes() != record.key:
                raise BadRecord("stored under another key than its own")
            return peer_id, fields
    raise BadRecord("not a key of this kind with a map")


@functools.lru_cache(2048)
def _verify(peer_id: str, data: bytes, signature: bytes) -> bool:
    """`verify`, done once for a record that many peers hand on; it is most of what a look-up costs."""
    return verify(peer_id, data, signature)


def _signed(record: DHTRecord, body: bytes) -> bytes:
    """The bytes a signature is over: every part in turn, preceded by its length."""
    parts = (record.key, record.subkey, body, struct.pack(">d", record.expiration_time))
    return _DOMAIN + b"".join(struct.pack(">I", len(part)) + part for part in parts)


def _load(data: bytes) -> object:
    try:
        return msgpack.unpackb(data, strict_map_key=True, max_array_len=_MOST_ITEMS, max_map_len=_MOST_ITEMS)
    except (ValueError, TypeError, msgpack.UnpackException):
        raise BadRecord("not msgpack") from None
