"""What this process and its children use: processor time, memory, bytes on the wire. All of it is read from /proc."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")
_SIOCGIFADDR = 0x8915


def cpu_seconds() -> float:
    """Processor time used so far by this process and all that descend from it and still live, in steps of 10 ms."""
    ticks = 0
    for process in _family():
        with contextlib.suppress(OSError):
            user, system = _fields(process)[11:13]
            ticks += int(user) + int(system)
    return ticks / _TICKS


def memory_bytes(peak: bool = False) -> int:
    """Resident memory of this process and its descendants, each byte they share counted once for each of them.

    ``peak`` gives the most of each since ``forget_peak``.
    """
    return 1024 * sum(_status(process, "VmHWM" if peak else "VmRSS") for process in _family())


def forget_peak() -> None:
    """Have the peak of this process and its descendants begin anew."""
    for process in _family():
        with contextlib.suppress(OSError):
            (process / "clear_refs").write_text("5")


def wire_bytes() -> int:
    """Bytes sent through all network devices that this process sees, with the headers of IP and TCP."""
    lines = (_PROC / "self/net/dev").read_text().splitlines()[2:]
    return sum(int(line.partition(":")[2].split()[8]) for line in lines)


def available_memory() -> int:
    """Bytes that this machine has to give."""
    match = re.search(r"MemAvailable:\s+(\d+) kB", (_PROC / "meminfo").read_text())
    return 1024 * int(match[1]) if match else 0


def _family() -> Iterator[Path]:
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                children.setdefault(int(_fields(entry)[1]), []).append(int(entry.name))
    waiting = [os.getpid()]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        yield _PROC / str(pid)


def _fields(process: Path) -> list[str]:
    """Of its ``stat``, from the state on: what is before that may hold spaces."""
    return (process / "stat").read_text().rpartition(")")[2].split()


def _status(process: Path, key: str) -> int:
    with contextlib.suppress(OSError):
        match = re.search(rf"{key}:\s+(\d+) kB", (process / "status").read_text())
        return int(match[1]) if match else 0
    return 0


def device_of(address: str) -> str:
    """The name of the network device that has this IPv4 address. Raises LookupError."""
    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            request = struct.pack("256s", name.encode())
            found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24]
            if socket.inet_ntoa(found) == address:
                return name
    raise LookupError(f"no network device has the address {address}")
