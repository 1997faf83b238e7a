"""The records that a node keeps for others: so many, whoever brings them, and none in the place of a newer one."""

from __future__ import annotations

import heapq
from typing import Any

from prime_p2p.network import clock, dropped
from prime_p2p.network._hivemind import DHTID, DHTLocalStorage, DictionaryDHTValue

MOST_KEYS = 4096
MOST_OF_A_KEY = 1024  # records: as many as a call may bring
MOST_BYTES_OF_A_KEY = 3 << 18  # all of them travel in one answer
MOST_OF_A_PEER = 64  # records, over all keys: two in a run, and the manifest of a public one in up to 33
MOST_BYTES = 64 << 20


class RecordStorage(DHTLocalStorage):
    """Records by key and peer until they expire. hivemind's own keeps whatever it is given, and a trace of each try.

    Where there is no room, what is here stays: it may be renewed, and nothing new is taken until something expires.
    """

    def __init__(self) -> None:
        super().__init__()
        self._bytes: dict[DHTID, int] = {}  # of the records of each key, when one was stored last
        self._all_bytes = 0  # of all keys

    def store_subkey(self, key: DHTID, subkey: Any, value: bytes, expiration_time: float) -> bool:
        """Keep a record; False where a newer one is here, or no room."""
        kept = self.get(key)
        records = DictionaryDHTValue() if kept is None else kept.value
        known = records.get(subkey)
        if known is not None and known.expiration_time >= expiration_time:
            return False  # without a trace: the entry that a replayed record leaves would take the newer one with it
        size = len(value) + sum(len(other) for peer, (other, _) in records.items() if peer != subkey)
        crowded = known is None and len(records) >= MOST_OF_A_KEY
        reason = self._no_room(key, size, crowded) or (self._too_many_of(subkey) if known is None else "")
        if reason:
            dropped.note("record", reason, str(subkey))
            return False
        if not records.store(subkey, value, expiration_time):
            return False  # it has expired
        self._all_bytes += size - self._bytes.get(key, 0)
        self._bytes[key] = size
        _forget_replaced(records)
        if kept is None or expiration_time > kept.expiration_time:
            self.store(key, records, expiration_time)
            _forget_replaced(self)
        return True

    def _no_room(self, key: DHTID, size: int, crowded: bool) -> str:
        if size > MOST_BYTES_OF_A_KEY or crowded:
            return "no room for more under its key"
        if key not in self.data and len(self.data) >= MOST_KEYS:
            return "no room for another key"
        others = self._all_bytes - self._bytes.get(key, 0)
        return "no room for more records" if others + size > MOST_BYTES else ""

    def _remove_outdated(self) -> None:
        """Called by hivemind before each look at what is here."""
        now = clock.now()
        while self.expiration_heap and self.expiration_heap[0].expiration_time < now:
            entry = heapq.heappop(self.expiration_heap)
            if self.key_to_heap.get(entry.key) == entry:  # no later record came under its key
                del self.data[entry.key], self.key_to_heap[entry.key]
                self._all_bytes -= self._bytes.pop(entry.key)

    def _too_many_of(self, peer: Any) -> str:
        count = sum(peer in kept.value.data for kept in self.data.values())
        return f"no more than {MOST_OF_A_PEER} records of one peer" if count >= MOST_OF_A_PEER else ""


def _forget_replaced(storage: Any) -> None:
    """A replaced record leaves an entry in the heap until it would have expired: do not let them pile up."""
    if len(storage.expiration_heap) > 2 * len(storage.data) + 64:
        storage.expiration_heap = list(storage.key_to_heap.values())
        heapq.heapify(storage.expiration_heap)
