"""Where a node listens: IP addresses of this machine and one port, the same at all of them and for TCP and QUIC."""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress

from prime_p2p.errors import BadInput

log = logging.getLogger(__name__)

PEER_PORT = 31330  # where a peer listens unless it is told otherwise, for a router to forward
_ORPHANED = 2.0  # seconds that a daemon may outlive its process, and hold the port; usually some milliseconds
_LOOK_AGAIN = 0.1  # seconds between two looks at a port that is taken
NEXT_PORTS = 100  # of them are tried where the wanted one is taken and the next free one will do
_FREE_PORTS = 16  # picked by the kernel, of which one is free at every address


def everywhere() -> tuple[str, ...]:
    """All addresses of this machine: of IPv4, and of IPv6 where it has that."""
    with suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
        probe.bind(("::", 0))
        return "0.0.0.0", "::"
    return ("0.0.0.0",)


def listen_addresses(hosts: Sequence[str], port: int, quic: bool = False) -> tuple[str, ...]:
    """The multiaddrs of a TCP port at these IP addresses, and with `quic` those of the UDP port of the same number.

    Raises:
        BadInput: there are none, one of them is no IP address, or the port is no port.
    """
    if not hosts:
        raise BadInput("a node needs at least one host to listen at")
    if not 0 <= port < 65536:
        raise BadInput(f"port {port} is not between 0 and 65535")
    where = [f"/ip{_version(host)}/{host}" for host in dict.fromkeys(hosts)]
    ways = [f"tcp/{port}", f"udp/{port}/quic-v1"] if quic else [f"tcp/{port}"]
    return tuple(f"{host}/{way}" for way in ways for host in where)


class PortTaken(BadInput):
    """A port that cannot be had."""


async def hold_port(hosts: Sequence[str], port: int, or_next: bool = False, udp: bool = False) -> "HeldPort":
    """What `HeldPort` gives, a moment later if the daemon of a process that was just killed still has the port.

    Raises:
        BadInput: it cannot be had at one of these addresses.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _ORPHANED
    while loop.time() < deadline:
        with suppress(PortTaken):
            return HeldPort(hosts, port, udp=udp)
        await asyncio.sleep(_LOOK_AGAIN)
    return HeldPort(hosts, port, or_next, udp)


class HeldPort:
    """Sockets that are bound to a port and never listen: the daemons of a node do, one after another."""

    def __init__(self, hosts: Iterable[str], port: int, or_next: bool = False, udp: bool = False) -> None:
        """Bind the port, or a free one for 0; with `or_next`, the next free one above it where it is taken.

        With `udp` the port of that number must be free there too. It is not held: a daemon shares it with nobody.

        Raises:
            PortTaken: it cannot be had at one of these addresses.
        """
        self._hosts = tuple(dict.fromkeys(hosts))
        self._udp = udp
        self._held = ExitStack()
        self.port = self._hold(port)
        tried = 1
        while not self.port and or_next and tried <= NEXT_PORTS and port + tried < 65536:
            self.port = self._hold(port + tried)
            tried += 1
        if not self.port:
            more = f" nor at one of the next {NEXT_PORTS}" if or_next else ""
            raise PortTaken(f"cannot listen on {self._refused[0]} port {port}{more}: {self._refused[1]}")
        if port and self.port != port:
            log.warning("port %d is taken (%s); listening on port %d", port, self._refused[1], self.port)

    def close(self) -> None:
        """Let go of it. May be called again."""
        self._held.close()

    def _hold(self, port: int) -> int:
        """Hold this port, or a free one for 0, and return it; 0 where that cannot be, for the reason in `_refused`."""
        for _ in range(1 if port else _FREE_PORTS):
            wanted = port
            with ExitStack() as held:
                try:
                    for host in self._hosts:
                        wanted = held.enter_context(_bound(host, wanted)).getsockname()[1]
                        held.enter_context(_claimed(host, wanted))
                        if self._udp:
                            with _socket(host, socket.SOCK_DGRAM) as probe:
                                probe.bind((host, wanted))
                except OSError as error:
                    self._refused = host, error.strerror
                    continue
                self._held = held.pop_all()
                return wanted
        return 0


def _bound(host: str, port: int) -> socket.socket:
    """A socket that is bound there.

    The first bind is one that no listener allows: a daemon would share the port with another one without a word. The
    second one allows our daemons in, and keeps the port from being given to anybody who asks for a free one.
    """
    with _socket(host) as probe:
        probe.bind((host, port))
        port = probe.getsockname()[1]
    held = _socket(host)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((host, port))
    except OSError:
        held.close()
        raise
    return held


def _claimed(host: str, port: int) -> socket.socket:
    """What keeps another node from a port that is bound, while no daemon listens there yet; gone with this process."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(f"\0prime-p2p/{host}/{port}")
    except OSError:
        claim.close()
        raise
    return claim


def _socket(host: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind)
    if kind is socket.SOCK_STREAM:  # for UDP it would share the port with whoever else says so
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if made.family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as the daemon does: IPv4 has a socket of its own
    return made


def _version(host: str) -> int:
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        raise BadInput(f"host {host!r} is no IP address") from None
