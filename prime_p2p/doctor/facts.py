"""What was found out about a machine and its place in the network, before anybody judges it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

Fact = TypeVar("Fact")


@dataclass(frozen=True)
class Unknown:
    """In the place of a fact that could not be found out, and why."""

    reason: str


@dataclass(frozen=True)
class Needs:
    """What a recipe needs of a machine.

    Bytes, where ``cpu_bytes`` are in memory instead of ``gpu_bytes`` on a GPU; and ``rate``, Mbit/s to keep up with its
    peers, 0 where nobody knows.
    """

    memory_bytes: int
    disk_bytes: int
    gpu_bytes: int
    cpu_bytes: int
    rate: float = 0.0


@dataclass(frozen=True)
class Python:
    """`wanted` is the range of versions as packages write it, "" where it is not known."""

    version: str
    system: str
    machine: str
    wanted: str
    fits: bool


@dataclass(frozen=True)
class Package:
    """`found` is the installed version, None for none."""

    name: str
    wanted: str
    found: str | None
    fits: bool


@dataclass(frozen=True)
class Kernels:
    """`absent` is why the compiled ones are not used, "" where they are."""

    absent: str


@dataclass(frozen=True)
class Descriptors:
    """`limit` of open files of a process; a `group` takes `needed`, and `most` when everything happens at once."""

    limit: int
    group: int
    needed: int
    most: int


@dataclass(frozen=True)
class Space:
    """Bytes that are free, of memory or on the disk under a folder."""

    free: int
    total: int


@dataclass(frozen=True)
class Folder:
    """`error` is why nothing can be written there, "" where something can."""

    path: Path
    exists: bool
    in_use: bool
    error: str


@dataclass(frozen=True)
class IdentityFile:
    """`peer_id` is "" where there is no key yet; `error` is why it cannot be read."""

    path: Path
    peer_id: str
    error: str
    open_to_others: bool


@dataclass(frozen=True)
class Port:
    """`error` is why nobody can listen there; port 0 is any free one."""

    number: int
    error: str


@dataclass(frozen=True)
class Gpu:
    """`found` says where there are signs of a GPU, "" for none; `error` is why PyTorch cannot use it."""

    found: str = ""
    name: str = ""
    count: int = 0
    memory: int = 0
    driver: str = ""
    cuda: str = ""
    bf16: bool = False
    error: str = ""


@dataclass(frozen=True)
class Daemon:
    """`seconds` from its start to an answer; `error` is why there was none."""

    seconds: float
    error: str


@dataclass(frozen=True)
class Joined:
    """`seconds` until the swarm was joined; `error` is why it was not."""

    seconds: float
    error: str


@dataclass(frozen=True)
class Clock:
    """Seconds that this machine's clock is ahead of the swarm's; negative is behind."""

    ahead: float


class Reach(Protocol):
    """What another peer said of one of our addresses: whether a connection to it worked, and if not, why."""

    @property
    def address(self) -> str: ...

    @property
    def works(self) -> bool: ...

    @property
    def reason(self) -> str: ...


@dataclass(frozen=True)
class Reached:
    """The answers of others, none where nobody could be asked."""

    port: int
    answers: Sequence[Reach]


@dataclass(frozen=True)
class Bandwidth:
    """Mbit/s to a peer of the swarm, and from it."""

    up: float
    down: float


@dataclass(frozen=True)
class Machine:
    """What can be found out without the network, and without any package but the standard library's."""

    python: Python
    packages: Sequence[Package] | Unknown
    kernels: Kernels | Unknown
    memory: Space | Unknown
    disk: Space | Unknown
    folder: Folder


@dataclass(frozen=True)
class Network:
    """What the network's code finds out; `Unknown` throughout where that cannot be loaded."""

    descriptors: Descriptors | Unknown
    identity: IdentityFile | Unknown
    port: Port | Unknown
    daemon: Daemon | Unknown
    joined: Joined | Unknown
    clock: Clock | Unknown
    reached: Reached | Unknown
    bandwidth: Bandwidth | Unknown
