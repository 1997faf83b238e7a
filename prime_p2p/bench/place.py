"""Where the peers of a benchmark are: on loopback, or on hosts of a lab with links of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

import typer

from prime_p2p.allreduce.partition import split
from prime_p2p.bench.rounds import Setup
from prime_p2p.errors import BadInput
from prime_p2p.lab.hosts import enclosed
from prime_p2p.lab.link import Link
from prime_p2p.lab.wan import Lab
from prime_p2p.lifetime import stop_with_parent

_INSIDE = "PRIME_P2P_BENCH_INSIDE"
_CUBIC = "cubic"  # the choice of Linux, of which there is no need to say anything
_CLEAN_UP = 30.0  # seconds for the processes and the lab to be gone


@dataclass(frozen=True)
class Links:
    """``rates`` in Mbit/s each way, of all peers or of each (0: no limit); ``round_trip`` in ms; ``equal_parts`` has
    peers reduce as much as each other, whatever their rates; ``congestion`` is the control that TCP uses."""

    rates: tuple[float, ...] = ()
    round_trip: float = 0.0
    equal_parts: bool = False
    congestion: str = _CUBIC

    def of_peers(self, peers: int) -> tuple[float, ...]:
        """The rate of each peer; empty where none is limited. Raises BadInput."""
        if len(self.rates) not in (0, 1, peers):
            raise BadInput(f"--rate: give one, or one for each of the {peers} peers, not {len(self.rates)}")
        if any(self.rates) and not all(self.rates):
            raise BadInput("--rate: give a number above 0 for every peer, or none")
        return self.rates * peers if len(self.rates) == 1 else self.rates


@dataclass(frozen=True)
class Place:
    """The setup with the peers in their places, and the links they have there."""

    setup: Setup
    rates: tuple[float, ...]
    round_trip: float

    @property
    def words(self) -> str:
        """The links, in words; empty on loopback."""
        rates = f" at {', '.join(f'{rate:g}' for rate in dict.fromkeys(self.rates))} Mbit/s" if self.rates else ""
        trip = f" with a round trip of {self.round_trip:g} ms" if self.round_trip else ""
        return rates + trip

    @property
    def best_seconds(self) -> float | None:
        """What the slowest link takes for the bytes of an all-reduce in these parts; None where no link is limited."""
        setup = self.setup
        if not self.rates or 0 in self.rates:
            return None
        shares = split(1 << 20, setup.bandwidths or (1.0,) * setup.peers)
        vectors = [1 + (setup.peers - 2) * share / (1 << 20) for share in shares]
        return max(
            vector * setup.bytes_of_vector * 8e-6 / rate for vector, rate in zip(vectors, self.rates, strict=True)
        )


@contextlib.contextmanager
def placed(setup: Setup, links: Links) -> Iterator[Place]:
    """Put the peers in their places; with links that takes a lab, in which this program is run once more.

    Raises BadInput where that cannot be had, and typer.Exit where the other run has done it all.
    """
    rates = links.of_peers(setup.peers)
    if not any(rates) and not links.round_trip:
        if links.congestion != _CUBIC:
            raise BadInput("--congestion: it takes links, which --rate or --round-trip gives the peers")
        yield Place(setup, (), 0.0)
        return
    if _INSIDE not in os.environ:
        raise typer.Exit(_run_inside())
    stop_with_parent(_interrupt, patience=_CLEAN_UP)
    each = rates or (0.0,) * setup.peers
    # Between two hosts lie two links, and a packet passes them twice.
    with Lab(
        {f"peer{rank}": Link(rate, rate, links.round_trip / 4) for rank, rate in enumerate(each)}, links.congestion
    ) as lab:
        places = tuple((f"peer{rank}", lab.address(f"peer{rank}")) for rank in range(setup.peers))
        unequal = len(set(each)) > 1 and not links.equal_parts
        yield Place(replace(setup, places=places, bandwidths=each if unequal else ()), rates, links.round_trip)


def _run_inside() -> int:
    """Run this program once more where a lab can be, and end that run when this one is interrupted; its exit code."""
    command = enclosed([sys.executable, "-m", "prime_p2p.cli", *sys.argv[1:]])
    # A session of its own: Ctrl+C on a terminal reaches us alone; the end of its standard input tells the other run.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, env={**os.environ, _INSIDE: "1"}, start_new_session=True
    ) as process:
        assert process.stdin is not None
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_CLEAN_UP)
            raise
        finally:
            process.kill()  # with it goes all that is enclosed
    return code if code >= 0 else 128 - code


def _interrupt() -> None:
    """Have the main thread stop as Ctrl+C does."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)
