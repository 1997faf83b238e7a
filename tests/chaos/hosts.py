"""Machines on one machine: each host is a network namespace with a cable to one of two switches.

Everything lives inside namespaces of the caller's own, which ``enclosed`` makes (as root, or as any user where the
kernel lets users have namespaces). They end with the process that has them, and with them every host, cable and process
in there: nothing is left on the machine, however the suite ends.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterable, Sequence

CLONE_NEWNET = 0x40000000
PREFIX = "10.77.0"


def enclosed(command: Sequence[str]) -> list[str]:
    """The command line that runs ``command`` with a network, processes and mounts of its own, until the caller ends."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    own = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "unshare",
        *user,
        "--mount",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]
    return [*own, "sh", "-c", 'mount -t tmpfs none /run && mkdir /run/netns && exec "$@"', "sh", *command]


class Hosts:
    """The hosts of ``sides``: one switch each, and a cable between the two."""

    def __init__(self, sides: Sequence[Sequence[str]]) -> None:
        self._ports: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        _ip(["link set lo up", "link add join0 type veth peer name join1"])
        for side, names in enumerate(sides):
            switch = f"switch{side}"
            _ip([f"link add {switch} type bridge", f"link set {switch} up"])
            _ip([f"link set join{side} master {switch}", f"link set join{side} up"])
            for name in names:
                self._add(name, switch)

    def _add(self, name: str, switch: str) -> None:
        number = len(self._ports) + 1
        port = self._ports[name] = f"port{number}"
        self._addresses[name] = f"{PREFIX}.{number}"
        _ip([f"netns add {name}", f"link add {port} type veth peer name eth0 netns {name}"])
        _ip([f"link set {port} master {switch}", f"link set {port} up"])
        _ip(["link set lo up", f"addr add {self._addresses[name]}/24 dev eth0", "link set eth0 up"], inside=name)

    def address(self, name: str) -> str:
        """The IP address of a host."""
        return self._addresses[name]

    def cut(self, name: str) -> None:
        """Pull the cable of a host: what it sends and what is sent to it is lost without a word."""
        _ip([f"link set {self._ports[name]} down"])

    def heal(self, name: str) -> None:
        """Plug it in again."""
        _ip([f"link set {self._ports[name]} up"])

    def split(self) -> None:
        """Pull the cable between the switches."""
        _ip(["link set join0 down"])

    def join(self) -> None:
        """Plug it in again."""
        _ip(["link set join0 up"])


def enter(name: str) -> None:
    """Move the calling thread, and what it starts from now on, to a host."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        if libc.setns(descriptor, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter host {name}")
    finally:
        os.close(descriptor)


def _ip(lines: Iterable[str], inside: str | None = None) -> None:
    command = ["ip", *([] if inside is None else ["-n", inside]), "-batch", "-"]
    subprocess.run(command, input="\n".join(lines), text=True, check=True, timeout=10)
