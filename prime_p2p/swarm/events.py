"""What a ``RoundMachine`` is told, and what it says to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from prime_p2p.network.frames import Message
from prime_p2p.swarm.certificate import Certificate
from prime_p2p.swarm.gathering import Seen
from prime_p2p.swarm.groups import Group


class Phase(Enum):
    TRAINING = "training"
    GATHERING = "gathering"
    REDUCING = "reducing"
    VOTING = "voting"
    UNCERTAIN = "uncertain"
    APPLYING = "applying"


# Events


@dataclass(frozen=True)
class Received:
    sender: str
    message: Message


@dataclass(frozen=True)
class PeerLost:
    """The peer's control stream broke or went silent, or it said that it leaves."""

    peer_id: str


@dataclass(frozen=True)
class CutOff:
    """Our own way to all others is down: whom we lose says nothing of them. Told again and again while that is so."""


@dataclass(frozen=True)
class PeersSeen:
    """The whole current view of the other peers."""

    peers: Mapping[str, Seen]


@dataclass(frozen=True)
class Ready:
    """Our pseudo-gradient is there: ``weight`` tokens, and the bandwidth we offer, made by ``terms``."""

    weight: int
    bandwidth: float
    terms: bytes = b""


@dataclass(frozen=True)
class SitsOut:
    """We are in no round for now, though we hold the state: nobody is to wait for us until we are ready."""


@dataclass(frozen=True)
class StateChanged:
    """We now hold another state: an update was applied, or we moved to another peer's. ``tokens`` were contributed to
    its lineage, and ``terms`` lead on from it."""

    step: int
    digest: bytes
    tokens: int = 0
    terms: bytes = b""


@dataclass(frozen=True)
class ReduceDone:
    """``signature`` is ours, under the vote for this update."""

    group_id: bytes
    update_digest: bytes
    signature: bytes


@dataclass(frozen=True)
class ReduceFailed:
    group_id: bytes
    blamed: frozenset[str]


@dataclass(frozen=True)
class Woken:
    """The time that ``wake_at`` gave has come."""


Event = Received | PeerLost | CutOff | PeersSeen | Ready | SitsOut | StateChanged | ReduceDone | ReduceFailed | Woken


# Actions


@dataclass(frozen=True)
class Send:
    to: str
    message: Message


@dataclass(frozen=True)
class StartReduce:
    group: Group


@dataclass(frozen=True)
class StopReduce:
    group_id: bytes


@dataclass(frozen=True)
class Commit:
    """The update of this group is agreed: apply it. ``attempts`` counts the groups begun for this outer step.

    ``certificate`` has the signed votes of all members.
    """

    group: Group
    attempts: int
    certificate: Certificate


@dataclass(frozen=True)
class Missed:
    """No outer step for us now; train on with the pseudo-gradient kept, and look whether others moved on.

    ``contributed``: others have committed a group with our pseudo-gradient in it. It must not be offered again.
    """

    reason: str
    contributed: bool = False


@dataclass(frozen=True)
class HurryUp:
    """The group is about to close: end the inner steps early."""


Action = Send | StartReduce | StopReduce | Commit | Missed | HurryUp
