"""What announcing costs, calculated: the bytes on the wire for the heartbeats of a run and for looks at them.

``scripts/bootstrap_cost.py`` measures the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from prime_p2p.network.board import AROUND, NEAREST, REPLICAS
from prime_p2p.swarm.membership import COPIES, FEW, RUN_EVERY, beat_pause, look_pause

CALL = (
    650  # bytes each way of a call of the DHT and its answer, headers of libp2p and TCP included, without what it says
)
NEIGHBOUR = 58  # bytes of one peer that an answer names as near to a key
NAME = 330  # bytes of the record that names a run
RECORD = 500  # bytes of a heartbeat with its signature, of a peer that has one address to tell


@dataclass(frozen=True)
class Traffic:
    """Bytes a second."""

    received: float
    sent: float

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.received + other.received, self.sent + other.sent)

    def __mul__(self, times: float) -> Traffic:
        return Traffic(self.received * times, self.sent * times)

    @property
    def minute(self) -> float:
        """MB a minute, in both directions."""
        return (self.received + self.sent) * 60 / 1e6


def _find(peers: int) -> Traffic:
    """One call of who looks for those that keep a key: they name others near to it."""
    return Traffic(CALL + NEIGHBOUR * min(AROUND, peers), CALL)


def _store(size: int) -> Traffic:
    return Traffic(CALL, CALL + size)


def _records(peers: int, record: int) -> Traffic:
    """The heartbeats of all, from one of the peers that keep them."""
    return Traffic(peers * record, 0)


def of_a_peer(peers: int, record: int = RECORD) -> Traffic:
    """What the calls of one peer cost it in a run of ``peers`` whose heartbeats, of ``record`` bytes, tell no news."""
    others = peers - 1
    walk = _find(peers) * min(NEAREST, peers)
    kept = min(REPLICAS, peers)
    look = walk + _records(peers, record) * kept
    if others > FEW:
        look = walk + (_find(peers) + _records(peers, record)) * COPIES
    beat, name = (walk + _store(size) * kept for size in (record, NAME))
    return look * (1 / look_pause(others)) + beat * (1 / beat_pause(others)) + name * (1 / RUN_EVERY)


def of_a_keeper(peers: int, record: int = RECORD) -> Traffic:
    """What the calls of all ``peers`` cost one of the nodes that keep their heartbeats."""
    others = peers - 1
    looks, beats = peers / look_pause(others), peers / beat_pause(others)
    asked = COPIES / REPLICAS if others > FEW else 1.0
    answers = _find(peers) * (looks + beats) + _records(peers, record) * (looks * asked)
    if others > FEW:
        answers += _find(peers) * (looks * asked)
    calls = answers + _store(record) * beats
    return Traffic(calls.sent, calls.received)
