"""A switch that takes its time: it carries packets between hosts, as fast as their links and as late as their delays.

``python -m prime_p2p.lab.switch`` is a process of its own. Its standard input is one line of JSON, and then stays open
for as long as it is to run; it prints ``ready``, or one line that says why it cannot be. To each host it is the other
end of its cable, a TUN device that takes and gives packets of up to 64 kB, which no real cable has: TCP cuts its data
only where it must, so that a few thousand packets a second are some Gbit/s.
"""

from __future__ import annotations

import errno
import fcntl
import heapq
import json
import math
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from prime_p2p.lab.hosts import CABLE, enter
from prime_p2p.lab.link import BURST, QUEUE, Link

READY = "ready"

_TUN = "/dev/net/tun"
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0  # from linux/if_tun.h, as what follows
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x01, 0x02
_GSO_TYPE, _GSO_SIZE = 1, slice(4, 6)  # where struct virtio_net_hdr, which comes before each packet, has them
_VNET_HEADER = 10  # bytes
_TARGET = slice(_VNET_HEADER + 16, _VNET_HEADER + 20)  # the address that an IPv4 packet goes to
_HEADERS = 52  # bytes before the data of a TCP segment
_LARGEST = _VNET_HEADER + 65535
_AT_ONCE = 32  # packets from one host before the next one's turn
_IDLE = 1.0  # seconds between two looks where nothing happens
_NICER = -10


class Line:
    """One direction of a link: bytes leave one after the other, and a packet that would wait for too long is lost."""

    def __init__(self, rate: float, queue: float) -> None:
        """With ``rate`` in Mbit/s, 0 for no limit, and a ``queue`` of so many seconds."""
        self._rate = rate * 1e6 / 8
        self._queue = queue
        self._free_at = -math.inf

    def pass_through(self, at: float, size: int) -> float | None:
        """When the last byte of a packet has left that came ``at`` this time; None where it is dropped."""
        if not self._rate:
            return at
        # This process is late now and then, which is not to cost the line what it could have sent meanwhile.
        begins = max(self._free_at, at - BURST)
        if begins - at > self._queue:
            return None
        self._free_at = begins + size / self._rate
        return max(at, self._free_at)


@dataclass(frozen=True)
class _Port:
    up: Line
    down: Line
    delay: float  # seconds


class Traffic:
    """The packets that are under way between hosts, which are numbers here: told the time, it says what arrives.

    A packet passes the sender's line, then both delays, then the receiver's line, in the order in which packets get
    there. Times are in seconds, of any one clock, and never go back.
    """

    def __init__(self, links: Sequence[Link]) -> None:
        delays = [link.delay / 1e3 for link in links]
        self._ports = []
        for number, link in enumerate(links):
            farthest = max(delays[:number] + delays[number + 1 :], default=0.0)
            # One stream fills a line only if as much as is under way can wait for it.
            queue = max(QUEUE, 2 * (delays[number] + farthest))
            self._ports.append(_Port(Line(link.up, queue), Line(link.down, queue), delays[number]))
        self._coming: list[tuple[float, int, bool, int, int, bytes]] = []  # the bool: it has passed the receiver's line
        self._count = 0

    def send(self, now: float, source: int, target: int, packet: bytes, size: int) -> None:
        """A host sends a packet, which takes ``size`` bytes of a line."""
        sender = self._ports[source]
        left = sender.up.pass_through(now, size)
        if left is not None:
            self._expect(left + sender.delay + self._ports[target].delay, False, target, size, packet)

    def arrived(self, now: float) -> Iterator[tuple[int, bytes]]:
        """What has arrived until now, in order: at which host, and the packet."""
        while self._coming and self._coming[0][0] <= now:
            at, _, passed, target, size, packet = heapq.heappop(self._coming)
            through = at if passed else self._ports[target].down.pass_through(at, size)
            if through == at:
                yield target, packet
            elif through is not None:
                self._expect(through, True, target, size, packet)

    def next_at(self) -> float:
        """When there is something to do next."""
        return self._coming[0][0] if self._coming else math.inf

    def _expect(self, at: float, passed: bool, target: int, size: int, packet: bytes) -> None:
        self._count += 1  # what is due at the same time stays in order
        heapq.heappush(self._coming, (at, self._count, passed, target, size, packet))


def size_on_line(packet: bytes) -> int:
    """The bytes that a packet, with its header for the device, would have had on a real cable, cut into segments."""
    size = len(packet) - _VNET_HEADER
    if packet[_GSO_TYPE]:
        segment = int.from_bytes(packet[_GSO_SIZE], sys.byteorder)
        size += max(0, size - _HEADERS - 1) // max(1, segment) * _HEADERS
    return size


def serve(traffic: Traffic, cables: Sequence[int], numbers: Mapping[bytes, int], owner: int) -> None:
    """Carry packets between these devices, of hosts with these addresses, until the pipe ``owner`` is closed."""
    watched = {descriptor: number for number, descriptor in enumerate(cables)}
    while True:
        for target, packet in traffic.arrived(time.monotonic()):
            # A device that is down or has no room: the packet is lost, as on any network.
            with suppress(OSError):
                os.write(cables[target], packet)
        pause = max(0.0, min(_IDLE, traffic.next_at() - time.monotonic()))
        readable = select.select([owner, *cables], [], [], pause)[0]
        if owner in readable and not os.read(owner, 4096):
            return
        for descriptor in readable:
            if descriptor != owner:
                _take(traffic, descriptor, watched[descriptor], numbers)


def _take(traffic: Traffic, cable: int, source: int, numbers: Mapping[bytes, int]) -> None:
    now = time.monotonic()
    with suppress(BlockingIOError):
        for _ in range(_AT_ONCE):
            packet = os.read(cable, _LARGEST)
            target = numbers.get(packet[_TARGET])
            if target is not None:  # multicast, or IPv6 looking for routers
                traffic.send(now, source, target, packet, size_on_line(packet))


def _open_cable(name: str) -> int:
    """Make the device of a host, which is there until its descriptor is closed."""
    enter(name)
    descriptor = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", CABLE.encode(), flags))
    fcntl.ioctl(descriptor, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
    return descriptor


def _why_not(error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
        return f"a lab with delays needs {_TUN}: modprobe tun, or in a container --device {_TUN}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"a lab with delays needs root, or leave to open {_TUN}"
    return f"a lab with delays cannot use {_TUN}: {error}"


def main() -> int:
    hosts = json.loads(sys.stdin.readline())
    try:
        cables = [_open_cable(host["name"]) for host in hosts]
    except OSError as error:
        print(_why_not(error), flush=True)
        return 1
    with suppress(OSError):  # not everybody may: peers that train take every core, and their network would be slow
        os.nice(_NICER)
    print(READY, flush=True)
    numbers = {socket.inet_aton(host["address"]): number for number, host in enumerate(hosts)}
    serve(Traffic([Link(*host["link"]) for host in hosts]), cables, numbers, sys.stdin.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
