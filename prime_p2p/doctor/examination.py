"""The whole examination, in half a minute at most."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from prime_p2p.doctor import machine
from prime_p2p.doctor.checks import judge
from prime_p2p.doctor.facts import Daemon, Needs, Network, Unknown
from prime_p2p.doctor.finding import Finding
from prime_p2p.doctor.gpu import GpuProbe
from prime_p2p.doctor.place import Place

_LOOKING = 28.0  # seconds until every look at something has ended; closing what was opened takes one or two more


def examine(directory: Path, place: Place, say: Callable[[str], None], needs: Needs | None = None) -> list[Finding]:
    """Look at this machine as a peer with this folder at this place, and judge it by what a recipe ``needs``.

    ``say`` is told what is being done.

    Raises:
        BadInput: An address of ``place`` is none.
    """
    until = time.monotonic() + _LOOKING
    with GpuProbe() as gpu:
        here = machine.look(directory)
        network = _network(place, directory, say, until)
        if gpu.asks:
            say("waiting for PyTorch to look at the GPU")
        return judge(here, network, gpu.result(max(1.0, until - time.monotonic())), needs)


def _network(place: Place, directory: Path, say: Callable[[str], None], until: float) -> Network:
    try:
        from prime_p2p.doctor import network
    except ImportError as error:  # hivemind, say, is missing or broken
        reason = f"the code of the network cannot be loaded: {error}"
        unknown = Unknown("it needs the code of the network")
        return Network(unknown, unknown, unknown, Daemon(0.0, reason), unknown, unknown, unknown, unknown)
    network.check_place(place)
    return network.look(place, directory, say, until)
