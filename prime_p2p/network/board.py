"""The notice board of the swarm: signed records in a Kademlia DHT.

hivemind's `DHTNode` answers the other peers and keeps the routing table. Looking up and publishing walk the DHT from
here: its own search believes whoever claims the latest expiration, hides fresh records behind cached ones and waits for
frozen peers one after the other.
"""

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack

from prime_p2p.network import clock
from prime_p2p.network._hivemind import (
    DHTID,
    DHTNode,
    DHTRecord,
    DictionaryDHTValue,
    PeerID,
    ValidationError,
    dht_pb2,
)
from prime_p2p.network.daemon import Daemon, DaemonError
from prime_p2p.network.identity import Identity
from prime_p2p.network.records import MAX_RECORD, MAX_TTL, PREFIX, BadRecord, SignedRecords, pack, unpack
from prime_p2p.network.storage import RecordStorage
from prime_p2p.network.tasks import end

log = logging.getLogger(__name__)

NEAREST = 8  # peers a walk ends with: those that keep a record, and some more, as each of us knows of other ones
REPLICAS = 5  # of them that keep a record
AROUND = 20  # peers that are nearest to this one, which it looks for when it starts: Kademlia's k
_WALK = 6.0  # seconds a walk may take before it goes on with what it has found
_PING_AGAIN = 0.25  # seconds before a peer that did not answer is asked again
_KEPT = 256  # peers remembered to find again after a partition
_KEPT_FOR = 3600.0  # seconds they are remembered
_INTRODUCED = 5.0  # seconds after which a peer that has connected has surely said where it listens
_ASK_AGAIN = 60.0  # seconds until it is asked again, as that may change
_KEEP_EVERY = 10.0  # seconds between two looks for lost peers
_COMPARED = 8  # peers whose time is compared with ours at every look
_RETRIED = 8  # lost peers tried at every look
_REJOIN = 3.0  # seconds for the peers known before to answer a new daemon; the others are found again later
_REJOINED = 32  # of them that are tried, those seen last


@dataclass
class _Walk:
    """What a walk has found."""

    peers: dict[DHTID, PeerID] = field(default_factory=dict)  # that answered
    records: dict[str, tuple[float, dict[str, Any]]] = field(default_factory=dict)  # peer id -> expiration, value

    def add(self, peer_id: str, expiration: float, value: dict[str, Any]) -> None:
        if expiration > self.records.get(peer_id, (0.0, {}))[0]:
            self.records[peer_id] = expiration, value


@dataclass
class _Contact:
    """Where a peer can be dialled; when it was first and last connected, and when it was asked (monotonic seconds)."""

    addresses: list[str]
    since: float
    seen: float
    asked: float = -math.inf

    def is_due(self, now: float) -> bool:
        """Whether to ask where it listens: at first again and again, until it must have said so."""
        there = now - self.seen < _INTRODUCED
        return there and (now - self.since < _INTRODUCED or now - self.asked > _ASK_AGAIN)


class Board:
    """This peer's end of the DHT."""

    def __init__(self, daemon: Daemon, node: Any, identity: Identity) -> None:
        self._daemon = daemon
        self._node = node
        self._identity = identity
        self._own: dict[str, tuple[float, dict[str, Any]]] = {}
        self._bootstrap: dict[str, list[str]] = {}
        self._known: dict[str, _Contact] = {}  # by peer id, in the order they were last seen
        self._keeper: asyncio.Task[None] | None = None

    @classmethod
    async def create(cls, daemon: Daemon, identity: Identity, rpc_timeout: float) -> "Board":
        """Start to answer the DHT's calls; `rpc_timeout` is how long one call to another peer may take (seconds)."""
        node = await DHTNode.create(
            p2p=daemon.p2p,
            node_id=DHTID.generate(daemon.peer_id),
            record_validator=SignedRecords(identity),
            wait_timeout=rpc_timeout,
            cache_locally=False,
            cache_nearest=0,
            cache_on_store=False,
            cache_refresh_before_expiry=0,
            reuse_get_requests=False,
        )
        # A cached dictionary would be handed out instead of the stored one, with the records it happened to have.
        node.protocol.storage = node.protocol.cache = RecordStorage()
        return cls(daemon, node, identity)

    async def reach(self, peer_id: str, addresses: Sequence[str], timeout: float) -> clock.Reading:
        """Connect to one of the swarm's peers, without being known to it yet, and return what its time is.

        Raises:
            DaemonError: that peer cannot be reached, or answers no calls of the DHT.
        """
        last_try = self._last_try(timeout)
        await self._daemon.dial(peer_id, addresses, timeout)
        while True:
            reading = await self._read_clock(PeerID.from_base58(peer_id))
            if reading is not None:
                return reading
            if time.monotonic() > last_try:
                raise DaemonError("it is there, but answers no call of the DHT")
            await asyncio.sleep(_PING_AGAIN)

    async def join(self, peer_id: str, timeout: float) -> None:
        """Meet the swarm through one of its peers, which was reached.

        Raises:
            DaemonError: that peer answers no calls of the DHT, or its time is still not ours.
        """
        protocol = self._node.protocol
        last_try = self._last_try(timeout)
        while True:
            reason = "answers no call of the DHT"
            try:
                if await protocol.call_ping(PeerID.from_base58(peer_id), validate=True) is not None:
                    return
            except ValidationError as error:  # our times differ, or it did not reach us in time
                reason = f"refused us: {error}"
            if time.monotonic() > last_try:
                raise DaemonError(f"it is there, but {reason}")
            await asyncio.sleep(_PING_AGAIN)

    def _last_try(self, timeout: float) -> float:
        return time.monotonic() + timeout - self._node.protocol.wait_timeout - _PING_AGAIN

    async def _read_clock(self, peer: PeerID) -> clock.Reading | None:
        """A peer's time, or None where it does not say it. It does not take us into its routing table for asking."""
        protocol = self._node.protocol
        asked = clock.now()
        try:
            answer = await protocol.get_stub(peer).rpc_ping(dht_pb2.PingRequest(), timeout=protocol.wait_timeout)
        except Exception:  # whatever the other one sends
            log.debug("%s does not say what time it is", peer, exc_info=True)
            return None
        return clock.reading(asked, answer.dht_time, clock.now())

    async def start(self, bootstrap: dict[str, list[str]]) -> None:
        """Look around, and from now on look again for peers that got lost. `bootstrap`: peer id -> addresses."""
        self._bootstrap = bootstrap
        await self._walk(self._node.node_id, AROUND)
        self._keeper = asyncio.ensure_future(self._keep())

    def take_over(self, former: "Board") -> None:
        """Go on for a board whose daemon is gone: with what it published, kept for others, and knew of other peers.

        Records are signed and expire by themselves, so those kept are as good as they were.
        """
        self._own, self._known, self._bootstrap = former._own, former._known, former._bootstrap
        self._node.protocol.storage = self._node.protocol.cache = former._node.protocol.storage

    async def rejoin(self) -> None:
        """Meet the peers known before, publish again what still holds, and from now on look for lost peers."""
        recent = list(self._known.items())[-_REJOINED:]
        contacts = {peer: contact.addresses for peer, contact in recent} | self._bootstrap
        finding = [asyncio.ensure_future(self._find_again(peer, there)) for peer, there in contacts.items()]
        try:
            if finding:
                await asyncio.wait(finding, timeout=_REJOIN)
        finally:
            for task in finding:
                task.cancel()
        await self.start(self._bootstrap)
        now = clock.now()
        await asyncio.gather(*(self._spread(key) for key, (expiration, _) in self._own.items() if expiration > now))

    async def publish(self, key: str, value: dict[str, Any], ttl: float) -> bool:
        """Put `value` under `key` in this peer's name for `ttl` seconds; return whether another peer has taken it.

        Raises:
            ValueError: it is too long, or for too long.
        """
        expiration = clock.now() + ttl
        size = len(self._signed(key, expiration, value))
        if size > MAX_RECORD or not 0 < ttl <= MAX_TTL:
            raise ValueError(f"record of {size} bytes for {ttl:g} s: at most {MAX_RECORD} for {MAX_TTL:g} s")
        self._own[key] = expiration, value
        return await self._spread(key)

    def _signed(self, key: str, expiration: float, value: dict[str, Any]) -> bytes:
        key_id, subkey = DHTID.generate(PREFIX + key), msgpack.packb(self._identity.peer_id)
        record = DHTRecord(key_id.to_bytes(), subkey, msgpack.packb(pack(key, value)), expiration)
        return SignedRecords(self._identity).sign_value(record)

    async def _spread(self, key: str) -> bool:
        """Give this peer's own record under `key` to those that keep it; return whether one of them has taken it."""
        key_id = DHTID.generate(PREFIX + key)
        expiration, value = self._own[key]
        signed = self._signed(key, expiration, value)
        nearest = await self._nearest(key_id)
        self._node.protocol.storage.store_subkey(key_id, self._identity.peer_id, signed, expiration)
        stored = await asyncio.gather(
            *(
                self._node.protocol.call_store(
                    peer, [key_id], [signed], expiration_time=[expiration], subkeys=[self._identity.peer_id]
                )
                for peer in nearest[:REPLICAS]
            )
        )
        return any(answer and answer[0] for answer in stored)

    async def lookup(self, key: str, copies: int | None = None) -> dict[str, dict[str, Any]]:
        """Return what peers say under `key`: peer id -> value. This peer's own record is among them.

        All peers that keep the records are asked, and each sends all that it has; with `copies` so many of them, chosen
        by chance, which is enough for what is looked up again and again.
        """
        key_id = DHTID.generate(PREFIX + key)
        walk = await (self._walk(key_id) if copies is None else self._sample(key_id, copies))
        if key in self._own:
            walk.add(self._identity.peer_id, *self._own[key])
        now = clock.now()
        return {peer: value for peer, (expiration, value) in walk.records.items() if expiration > now}

    async def _sample(self, key_id: DHTID, copies: int) -> _Walk:
        """Ask some of the peers that keep the records of a key, until so many of them have answered."""
        walk = _Walk()
        self._collect(walk, key_id, self._node.protocol.storage.get(key_id))
        keepers = (await self._nearest(key_id))[:REPLICAS]
        random.shuffle(keepers)
        missing = copies
        while keepers and missing:
            asked, keepers = keepers[:missing], keepers[missing:]
            answers = await asyncio.gather(*(self._ask(walk, key_id, peer) for peer in asked))
            missing -= sum(answer is not None for answer in answers)
        return walk

    async def _nearest(self, key_id: DHTID) -> list[PeerID]:
        """Return the peers nearest to a key, the nearest first.

        They are asked for a place next to the key's, so that they do not send its records along.
        """
        found = (await self._walk(DHTID(key_id ^ 1))).peers
        return [found[node_id] for node_id in sorted(found, key=key_id.xor_distance)]

    async def _walk(self, key_id: DHTID, most: int = NEAREST) -> _Walk:
        """Ask the peers nearest to a key for its records and for nearer peers, until there is none unasked."""
        walk = _Walk()
        protocol, blacklist = self._node.protocol, self._node.blacklist
        self._collect(walk, key_id, protocol.storage.get(key_id))
        if not self._daemon.alive:
            return walk
        known = dict(protocol.routing_table.get_nearest_neighbors(key_id, AROUND, exclude=self._node.node_id))
        asked = {self._node.node_id}

        async def ask(node_id: DHTID) -> None:
            asked.add(node_id)
            neighbours = await self._ask(walk, key_id, known[node_id])
            if neighbours is None:
                return
            walk.peers[node_id] = known[node_id]
            for neighbour, peer in list(neighbours.items())[:AROUND]:
                known.setdefault(neighbour, peer)

        deadline = time.monotonic() + _WALK
        while True:
            nearest = sorted((n for n in known if known[n] not in blacklist), key=key_id.xor_distance)[:most]
            tasks = [asyncio.ensure_future(ask(n)) for n in nearest if n not in asked]
            if not tasks or time.monotonic() > deadline:
                return walk
            try:
                await asyncio.wait(tasks, timeout=deadline - time.monotonic())
            finally:
                for task in tasks:
                    task.cancel()

    async def _ask(self, walk: _Walk, key_id: DHTID, peer: PeerID) -> dict[DHTID, PeerID] | None:
        """Ask one peer for the records of a key; return which peers it knows near there, None if it does not answer."""
        answer = await self._node.protocol.call_find(peer, [key_id])
        if not answer:
            self._node.blacklist.register_failure(peer)
            return None
        self._node.blacklist.register_success(peer)
        found, neighbours = answer[key_id]
        self._collect(walk, key_id, found)
        return dict(neighbours)

    def _collect(self, walk: _Walk, key_id: DHTID, found: Any) -> None:
        if found is None or not isinstance(found.value, DictionaryDHTValue):
            return
        for subkey, (value, expiration) in list(found.value.items()):
            if expiration <= walk.records.get(subkey, (0.0, {}))[0]:
                continue  # another peer has sent it
            try:
                peer_id, fields = unpack(DHTRecord(key_id.to_bytes(), msgpack.packb(subkey), value, expiration))
            except BadRecord:
                continue
            walk.add(peer_id, expiration, fields)

    async def _keep(self) -> None:
        """Find lost peers again: those there were connections to, and the ones this peer was given to begin with."""
        while True:
            await asyncio.sleep(_KEEP_EVERY)
            try:
                self.remember(await self._daemon.peers())
            except DaemonError as error:
                log.debug("cannot look for lost peers: %s", error)
                continue
            await self._compare_clocks()
            present = {str(peer) for peer in self._node.protocol.routing_table.peer_id_to_uid}
            lost = {peer: contact.addresses for peer, contact in self._known.items() if peer not in present}
            tried = random.sample(list(lost), min(_RETRIED, len(lost)))
            away = {peer: addresses for peer, addresses in self._bootstrap.items() if peer not in present}
            wanted = {peer: lost[peer] for peer in tried} | away
            await asyncio.gather(*(self._find_again(peer, addresses) for peer, addresses in wanted.items()))

    async def _compare_clocks(self) -> None:
        """Follow the time of the other peers; one that has always been alone goes by its own clock."""
        known = list(self._node.protocol.routing_table.peer_id_to_uid)
        compared = random.sample(known, min(_COMPARED, len(known)))
        readings = await asyncio.gather(*(self._read_clock(peer) for peer in compared))
        clock.follow([reading for reading in readings if reading is not None])

    def remember(self, connected: dict[str, list[str]]) -> None:
        """Keep in mind these peers, which there are connections to, and the ends of those."""
        now = time.monotonic()
        for peer_id, ends in connected.items():
            contact = self._known.pop(peer_id, None)
            if contact is None or now - contact.seen > _KEEP_EVERY:
                contact = _Contact(ends, now, now)
            contact.seen = now
            self._known[peer_id] = contact
        recent = [(peer, contact) for peer, contact in self._known.items() if contact.seen > now - _KEPT_FOR]
        self._known = dict(recent[-_KEPT:])

    def contacts(self) -> dict[str, tuple[list[str], float]]:
        """Return the peers that have said where they listen, by peer id: where, and seconds since they left."""
        now = time.monotonic()
        asked = {peer: contact for peer, contact in self._known.items() if contact.asked > -math.inf}
        return {peer: (contact.addresses, now - contact.seen) for peer, contact in asked.items()}

    def addresses_of(self, peer_id: str) -> list[str]:
        """Return where a peer can be dialled without a relay, as far as is known; where we were told comes first."""
        contact = self._known.get(peer_id)
        found = [*self._bootstrap.get(peer_id, []), *(contact.addresses if contact else [])]
        plain = (address.removesuffix(f"/p2p/{peer_id}") for address in found if "/p2p-circuit" not in address)
        return list(dict.fromkeys(plain))

    async def locate(self) -> None:
        """Find out where the peers that were just seen listen: who has dialled us may have done so from any port."""
        now = time.monotonic()
        due = {peer: contact for peer, contact in self._known.items() if contact.is_due(now)}
        await asyncio.gather(*(self._locate(peer, contact, now) for peer, contact in due.items()))

    async def _locate(self, peer_id: str, contact: _Contact, now: float) -> None:
        with contextlib.suppress(DaemonError):  # the connection has just ended, or the daemon has, which others notice
            contact.addresses = await self._daemon.listening(peer_id) or contact.addresses
            contact.asked = now

    async def _find_again(self, peer_id: str, addresses: list[str]) -> None:
        try:
            await self._daemon.dial(peer_id, addresses, _KEEP_EVERY / 2)
        except (DaemonError, ValueError, LookupError) as error:  # it may have said that it listens at no address
            log.debug("%s is still lost: %s", peer_id, error)
            return
        await self._node.protocol.call_ping(PeerID.from_base58(peer_id))

    async def close(self) -> None:
        """Answer no more. May be called again."""
        if self._keeper is not None:
            await end([self._keeper])
        self._node.is_alive = False
