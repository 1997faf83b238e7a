"""What every contender does, and the options it is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from prime_p2p.allreduce.codec import Float32


@dataclass(frozen=True)
class Options:
    """One process of a team: ``params`` elements among ``peers``, this one being number ``rank``.

    ``first`` is what the first process answered when it was ready (empty for itself), ``folder`` a place for files
    that all of them see, ``address`` the IP address to listen at.
    """

    contender: str
    rank: int
    peers: int
    params: int
    folder: str
    codec: str = "int8"
    threads: int = 1
    address: str = "127.0.0.1"
    host: str = ""
    bandwidths: tuple[float, ...] = ()
    first: dict[str, Any] = field(default_factory=dict)

    @property
    def known(self) -> tuple[str, ...]:
        """The address of the first process, where this is not it."""
        return (self.first["address"],) if self.first else ()

    @property
    def identity(self) -> Path:
        """The file of this process's private key."""
        return Path(self.folder) / f"{self.contender}-{self.rank}.key"


class Contender(Protocol):
    """A way to average. All methods are called in turn, in the main thread of a process of its own."""

    def __init__(self, options: Options, mine: Float32) -> None:
        """``mine`` is this peer's vector, which nobody may change."""

    def ready(self) -> dict[str, Any]:
        """Be there; what the others need to know."""

    def meet(self, team: list[dict[str, Any]]) -> None:
        """Get in touch with the whole team, ourselves included, in order."""

    def prepare(self, number: int) -> None:
        """What is not measured of a round."""

    def round(self) -> dict[str, float]:
        """Do what is measured; returns what only the contender knows of it, as ``sent``, its own count of bytes."""

    def result(self) -> Float32 | None:
        """The mean of the last round; None where there is none to look at."""

    def close(self) -> None:
        """End everything."""
