"""The calls that peers make of each other's DHT, looked at before hivemind is given them.

hivemind believes what it is sent. It unpacks values within values until the stack is full and the process is gone,
spends minutes on the text of a long peer id, looks for as many keys as a call has room for, and takes any place in the
DHT that a peer claims. So a request is checked when it comes from the network, and an answer when it comes back.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgpack

from prime_p2p.network import dropped
from prime_p2p.network._hivemind import DHTID, P2P, PeerID, dht_pb2
from prime_p2p.network.allowance import Allowance

MAX_CALL = 1 << 20  # bytes of a request or an answer; the daemon takes no more
MOST_KEYS = 16  # that one search may be for; ours are for one
MOST_RECORDS = 1024  # in one call: each costs the check of a signature
MOST_NEIGHBOURS = 64  # that one answer may name; ours name 20
_RATE, _STOCK = 100.0, 2048.0  # calls and records a second that one peer may bring, and at once

_ID = DHTID.HASH_NBYTES
_LONGEST_PEER_ID = 64  # bytes; an Ed25519 one has 38
_LONGEST_SUBKEY = 68  # bytes: a peer id as text, packed
_DICTIONARY_TAG = b""  # the subkey of a whole dictionary in a call
_DICTIONARY = 0x50  # msgpack extension of a packed one

Handler = Callable[[Any, Any], Awaitable[Any]]


class BadCall(ValueError):
    """A call of the DHT, or an answer to one, that no peer of ours would send."""


class PendingCalls(dict[Any, Any]):
    """hivemind's calls that wait for an answer, without those that somebody has just cancelled.

    A cancelled call is in there for one more turn of the event loop. An answer that comes in that very turn would end
    hivemind's reader with InvalidStateError, and with it all calls of the DHT until there is another daemon.
    """

    def __contains__(self, call: object) -> bool:
        future = self.get(call)
        return future is not None and not future.done()


class GuardedP2P(P2P):
    """hivemind's P2P, which lets through only the calls that are in order."""

    def __init__(self) -> None:
        super().__init__()
        self._allowance = Allowance(_RATE, _STOCK)

    async def _add_protobuf_unary_handler(self, name: str, handler: Handler, *types: Any, **options: Any) -> None:
        async def guarded(request: Any, context: Any) -> Any:
            sender: str = context.remote_id.to_base58()
            try:
                if self._allowance.take(sender, 1 + check_request(request, context.remote_id)):
                    raise BadCall("it calls too often")
            except BadCall as reason:
                dropped.note("call", reason, sender)
                raise
            return await handler(request, context)

        await super()._add_protobuf_unary_handler(name, guarded, *types, **options)

    async def _call_unary_protobuf_handler(self, peer_id: PeerID, *call: Any) -> Any:
        answer = await super()._call_unary_protobuf_handler(peer_id, *call)
        try:
            check_answer(answer, peer_id)
        except BadCall as reason:
            dropped.note("answer", reason, peer_id.to_base58())
            raise
        return answer


def check_request(request: Any, sender: PeerID) -> int:
    """Return how many records a request brings.

    Raises:
        BadCall: it is not in order.
    """
    _check_place(request.peer.node_id, sender)
    if isinstance(request, dht_pb2.FindRequest):
        _check_keys(request.keys, MOST_KEYS)
    if not isinstance(request, dht_pb2.StoreRequest):
        return 0
    _check_keys(request.keys, MOST_RECORDS)
    if not len(request.keys) == len(request.subkeys) == len(request.values):
        raise BadCall("as many keys as values are to be stored")
    records = 0
    for subkey, value in zip(request.subkeys, request.values, strict=True):
        records += records_in(value) if subkey == _DICTIONARY_TAG else _one_record(subkey)
        if records > MOST_RECORDS:
            raise BadCall(f"more than {MOST_RECORDS} records")
    return records


def check_answer(answer: Any, peer: PeerID) -> None:
    """Raise BadCall where an answer is not in order."""
    _check_place(answer.peer.node_id, peer)
    if not isinstance(answer, dht_pb2.FindResponse):
        return
    if len(answer.results) > MOST_KEYS:
        raise BadCall(f"more than {MOST_KEYS} results")
    for result in answer.results:
        if result.type == dht_pb2.FOUND_DICTIONARY:
            records_in(result.value)
        nodes, peers = result.nearest_node_ids, result.nearest_peer_ids
        if len(nodes) != len(peers) or len(peers) > MOST_NEIGHBOURS:
            raise BadCall(f"{len(nodes)} places of {len(peers)} neighbours")
        for node, neighbour in zip(nodes, peers, strict=True):
            if len(neighbour) > _LONGEST_PEER_ID or node != _place_of(neighbour):
                raise BadCall("a neighbour in a place that is not its own")


def records_in(packed: bytes) -> int:
    """How many records a packed dictionary holds.

    Raises:
        BadCall: it is something else, or has values within values.
    """
    match _unpacked(packed):
        case msgpack.ExtType(code=code, data=content) if code == _DICTIONARY:
            pass
        case _:
            raise BadCall("not a dictionary")
    match _unpacked(content):
        case [size, float(latest), list(items)] if size in (None, math.inf) and not math.isnan(latest):
            pass
        case _:
            raise BadCall("not a dictionary of records")
    for item in items:
        match item:
            case [str(), bytes(), float(expiration)] if math.isfinite(expiration):
                pass
            case _:
                raise BadCall("not a record in a dictionary")
    return len(items)


def _one_record(subkey: bytes) -> int:
    if len(subkey) > _LONGEST_SUBKEY or not isinstance(_unpacked(subkey), str):
        raise BadCall("a subkey that is no peer id")
    return 1


def _unpacked(data: bytes) -> object:
    try:
        return msgpack.unpackb(data, strict_map_key=True, max_array_len=MOST_RECORDS, max_map_len=0)
    except (ValueError, TypeError, msgpack.UnpackException):
        raise BadCall("not msgpack, or too long") from None


def _check_keys(keys: Sequence[bytes], most: int) -> None:
    if len(keys) > most or any(len(key) != _ID for key in keys):
        raise BadCall(f"not at most {most} keys of {_ID} bytes")


def _check_place(node_id: bytes, peer: PeerID) -> None:
    """A peer's place in the DHT follows from its id, so that it has one place and does not choose it."""
    if node_id and node_id != _place_of(peer.to_bytes()):
        raise BadCall("a place in the DHT that is not its own")


@functools.lru_cache(4096)
def _place_of(peer_id: bytes) -> bytes:
    return DHTID.generate(PeerID(peer_id).to_base58()).to_bytes()
