"""How the ranks of a peer come to be: rank 0 starts the others, or torchrun has started all of them."""

from __future__ import annotations

import os
import secrets
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from prime_p2p.errors import BadInput, PrimeError
from prime_p2p.recipe import InnerRecipe

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from prime_p2p.training.ranks.crew import Crew

MEETING_DEADLINE = 120.0
"""Seconds for the ranks that torchrun has started to find each other."""

JOINING_DEADLINE = 600.0
"""Seconds for rank 0 to join the network, which it does before it meets the others."""

_ADDRESS = "prime-p2p/rank-0"
_RANK = struct.Struct("<I")
_CREDENTIALS = struct.Struct("iII")


@dataclass(frozen=True)
class Launch:
    """How many ranks this peer has, and which one this process is."""

    ranks: int = 1
    rank: int = 0
    by_torchrun: bool = False

    @classmethod
    def of(cls, devices: int, environment: Mapping[str, str] = os.environ) -> Launch:
        """From ``--devices`` (0: not given), and from what torchrun sets. Raises BadInput where they do not fit."""
        if "TORCHELASTIC_RUN_ID" not in environment:
            return cls(max(1, devices))
        ranks, rank = int(environment["WORLD_SIZE"]), int(environment["RANK"])
        if environment["LOCAL_WORLD_SIZE"] != environment["WORLD_SIZE"]:
            raise BadInput("torchrun --nnodes: the ranks of a peer are on one machine; start a peer on each machine")
        if devices not in (0, ranks):
            raise BadInput(f"--devices {devices}: torchrun has started {ranks} ranks; leave --devices out")
        return cls(ranks, rank, by_torchrun=True)

    def check(self, inner: InnerRecipe) -> None:
        """Raises BadInput where the ranks cannot share a batch, or the optimizer."""
        if inner.batch_size % self.ranks:
            raise BadInput(
                f"inner.batch_size = {inner.batch_size} cannot be shared equally by {self.ranks} devices; take a "
                "number of devices that divides it"
            )
        if self.ranks > 1 and inner.optimizer == "adamw8bit":
            raise BadInput('inner.optimizer: "adamw8bit" is for peers of one device; leave --devices out')

    def crew(self) -> Crew:
        """The other ranks, for rank 0. Raises PrimeError where they do not come."""
        from prime_p2p.training.ranks.crew import Crew

        if self.by_torchrun:
            return Crew(_meet(self.ranks), {})
        return Crew(*_started(self.ranks))

    def serve(self) -> int:
        """Be a rank other than 0 of those that torchrun has started; returns the exit code."""
        from prime_p2p.training.ranks.worker import serve

        address = _store(JOINING_DEADLINE).get(_ADDRESS).decode()
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(f"\0{address}")
        if not _ours(connected):
            raise PrimeError("another user of this machine has taken the place of rank 0 of this peer")
        connected.sendall(_RANK.pack(self.rank))
        return serve(connected, self.rank)


def _started(ranks: int) -> tuple[dict[int, socket.socket], dict[int, subprocess.Popen[bytes]]]:
    sockets, children = {}, {}
    for rank in range(1, ranks):
        sockets[rank], theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "prime_p2p.training.ranks", str(rank), str(theirs.fileno())]
            children[rank] = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    return sockets, children


def _meet(ranks: int) -> dict[int, socket.socket]:
    """Wait for the other ranks at a socket of this user, whose name is in the store that torchrun keeps."""
    with ExitStack() as sockets, socket.socket(socket.AF_UNIX) as listening:
        name = f"prime-p2p-{secrets.token_hex(16)}"
        listening.bind(f"\0{name}")
        listening.listen(ranks)
        listening.settimeout(MEETING_DEADLINE)
        _store(MEETING_DEADLINE).set(_ADDRESS, name)
        met: dict[int, socket.socket] = {}
        while len(met) < ranks - 1:
            try:
                connected, _ = listening.accept()
            except TimeoutError:
                missing = next(rank for rank in range(1, ranks) if rank not in met)
                raise PrimeError(f"rank {missing} of this peer did not come within {MEETING_DEADLINE:.0f} s") from None
            sockets.enter_context(connected)
            if not _ours(connected):
                continue
            connected.settimeout(MEETING_DEADLINE)
            met[_RANK.unpack(connected.recv(_RANK.size, socket.MSG_WAITALL))[0]] = connected
            connected.settimeout(None)
        sockets.pop_all()
        return met


def _store(deadline: float) -> TCPStore:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=deadline))


def _ours(connected: socket.socket) -> bool:
    """Whether the other end is a process of this user: anybody on this machine can connect."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(credentials)[1] == os.getuid()
