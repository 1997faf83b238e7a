"""The faults: what happens, to whom, and at which point of a round."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    KILL = "kill"  # SIGKILL to the peer
    FREEZE = "freeze"  # SIGSTOP, and SIGCONT some seconds later
    SUSPEND = "suspend"  # the same for the peer and its daemon, as when a machine sleeps
    DAEMON = "daemon"  # SIGKILL to its libp2p daemon
    CUT = "cut"  # its network cable pulled, and plugged in again some seconds later
    LEAVE = "leave"  # SIGTERM: it leaves politely
    PARTITION = "partition"  # the cable between two halves of the swarm pulled, and plugged in again
    BOOTSTRAP = "bootstrap"  # SIGKILL to the bootstrap node

    @property
    def isolates(self) -> bool:
        """Whether peers that live on are apart for a while, so that a lineage may fork until they meet again."""
        return self in (Kind.CUT, Kind.DAEMON, Kind.PARTITION)

    @property
    def ends_its_peer(self) -> bool:
        return self in (Kind.KILL, Kind.LEAVE)


POINTS = (
    "joining",  # before it enters the run
    "training",
    "gathering",  # it has sent its join, or leads and has the first join
    "reducing-10",  # a tenth of the bytes of the all-reduce received
    "reducing-50",
    "reducing-90",
    "voting",  # its reduce is complete, no vote of its sent
    "voted-some",  # its vote sent to half of the group
    "applying",  # committed, the update not applied
    "applied",  # the update applied, nobody told
)
ANY_TIME = "any"
WITHOUT_ROLE = ("joining", "training", ANY_TIME)


@dataclass(frozen=True)
class Fault:
    """``kind`` strikes the first peer that reaches ``point`` as the group's leader, or as a follower (None: either);
    ``seconds`` is how long a freeze or a cut lasts."""

    kind: Kind
    point: str = ANY_TIME
    leader: bool | None = None
    seconds: float = 0.0

    def __str__(self) -> str:
        role = {None: "", True: " of a leader", False: " of a follower"}[self.leader]
        return f"{self.kind.value} at {self.point}{role}"


def catalogue() -> list[Fault]:
    """Every fault that the suite knows, once."""
    faults = []
    for point in POINTS:
        for leader in (None,) if point in WITHOUT_ROLE else (True, False):
            faults.append(Fault(Kind.KILL, point, leader))
            if point not in ("joining", "reducing-10", "reducing-90"):
                faults.append(Fault(Kind.FREEZE, point, leader, seconds=8.0))
    for point in ("gathering", "reducing-50", "voting", "applied"):
        faults.append(Fault(Kind.CUT, point, False, seconds=10.0))
    for point in ("training", "gathering", "reducing-50", "voted-some"):
        faults.append(Fault(Kind.DAEMON, point, None))
    faults.append(Fault(Kind.CUT, "reducing-50", True, seconds=10.0))
    for point in ("gathering", "reducing-50", "voted-some"):
        faults.append(Fault(Kind.SUSPEND, point, None, seconds=12.0))
    faults.append(Fault(Kind.FREEZE, ANY_TIME, seconds=2.0))  # shorter than the detection
    for point in ("gathering", "reducing-50", "voting"):
        faults.append(Fault(Kind.LEAVE, point, None))
    faults += [Fault(Kind.KILL), Fault(Kind.CUT, seconds=3.0), Fault(Kind.BOOTSTRAP)]
    faults.append(Fault(Kind.PARTITION, seconds=20.0))
    return faults


def schedule(seed: int) -> Iterator[Fault]:
    """All faults in an order that the seed names, again and again; each kind early on, so that a short run has all."""
    dice = random.Random(seed)
    while True:
        faults = catalogue()
        dice.shuffle(faults)
        first: dict[Kind, Fault] = {}
        for fault in faults:
            first.setdefault(fault.kind, fault)
        yield from first.values()
        yield from (fault for fault in faults if fault is not first[fault.kind])
