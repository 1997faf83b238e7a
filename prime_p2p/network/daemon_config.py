"""What a libp2p daemon is started with."""

import ipaddress
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from prime_p2p.network._hivemind import P2P
from prime_p2p.network.calls import MAX_CALL, GuardedP2P

START = 15.0  # seconds for the daemon to come up
_RELAY_BUFFER = 1 << 18  # bytes of one connection, each way, that a relay may hold

# Above the high mark the connections that carry least are closed, but for those younger than the grace.
_CONNECTIONS = {"connLo": 256, "connHi": 512, "connGrace": "20s"}


@dataclass(frozen=True)
class RelayLimits:
    """What a relay carries for peers that nobody can dial. The daemon has no limit of the rate.

    Attributes:
        peers: that may be reached through it at a time; with 0 it carries nothing.
        connections: through it that one peer may have.
        gigabytes: each way over one connection, which is cut then; the two peers may make another one.
        hours: that one connection lasts at most.
    """

    peers: int = 128
    connections: int = 64
    gigabytes: int = 64
    hours: int = 24

    def options(self) -> dict[str, Any]:
        """The daemon's."""
        if not self.peers:
            return {"relayService": 0}
        return {
            "relayService": 1,
            "relayMaxReservations": self.peers,
            "relayMaxCircuits": self.connections,
            "relayDataLimit": self.gigabytes * 10**9,
            "relayTimeLimit": f"{self.hours}h",
            "relayBufferSize": _RELAY_BUFFER,
        }


@dataclass(frozen=True)
class DaemonConfig:
    """How the daemon meets the network; addresses are multiaddrs.

    Attributes:
        public, private: others can, or cannot, dial it.
        limits: of what it carries for others itself.
        one_core: use no more than that.
        sockets_in_memory: have them in a file system in memory, where there is one. It is not for long where users who
            log out lose what they have there.
    """

    identity: Path
    listen: tuple[str, ...]
    announce: tuple[str, ...] = ()
    public: bool = False
    private: bool = False
    limits: RelayLimits = RelayLimits(peers=0)
    one_core: bool = False
    sockets_in_memory: bool = False

    @property
    def known_address(self) -> bool:
        """Whether somebody chose the address that others reach this host by, or it has one of its own in the internet;
        if not, it may be behind NAT."""
        chosen = self.public or bool(self.announce) or not any(map(_is_any, self.listen)) or _has_global_address()
        return chosen and not self.private

    @property
    def loopback(self) -> bool:
        """Whether this host listens on loopback alone."""
        return all(ipaddress.ip_address(address.split("/")[2]).is_loopback for address in self.listen)

    @property
    def here(self) -> str:
        """Where this machine itself finds this host."""
        _, kind, host, *port = self.listen[0].split("/")
        if _is_any(self.listen[0]):
            host = "127.0.0.1" if kind == "ip4" else "::1"
        return "/".join(("", kind, host, *port))

    @property
    def reachability(self) -> str | None:
        """What the daemon is told of whether others can dial it; None where it is to find out."""
        return "private" if self.private else "public" if self.public else None


def options(config: DaemonConfig) -> dict[str, Any]:
    """The arguments of hivemind's P2P for a configuration."""
    return {
        "host_maddrs": list(config.listen),
        "announce_maddrs": list(config.announce) or None,
        "identity_path": str(config.identity),
        "check_if_identity_free": False,  # it reads RSA keys only
        "nat_port_map": not config.loopback,
        "auto_nat": not config.loopback,
        "use_auto_relay": False,  # slow, and content with any relay; see reachability.py
        "force_reachability": config.reachability,
        "startup_timeout": START,
        "persistent_conn_max_msg_size": MAX_CALL,
    }


def p2p_class(config: DaemonConfig, folder: Path, started: list[Any]) -> Any:
    """hivemind's P2P, with its sockets in `folder` instead of in /tmp and flags that it has no arguments for.

    TLS 1.3 alone takes a quarter less CPU than Noise, which the daemons would agree on otherwise. What is made of the
    class is added to `started`.

    Dials leave from the port that the daemon listens on only where that can help it through a NAT. Two peers that dial
    each other in that way at the same moment get one connection of which both take themselves for the client, and no
    other for seconds; the further apart they are, the likelier. https://github.com/libp2p/go-libp2p/issues/2925
    """

    class P2PInFolder(GuardedP2P):
        _UNIX_SOCKET_PREFIX = f"/unix{folder}/"
        DHT_MODE_MAPPING: ClassVar[dict[str, Any]] = {
            "server": {"dhtServer": 1, "noise": 0, **_CONNECTIONS, **config.limits.options()}
        }

        def __init__(self) -> None:
            super().__init__()
            started.append(self)

        @staticmethod
        def _make_process_args(*args: Any, **kwargs: Any) -> list[str]:
            command: list[str] = P2P._make_process_args(*args, **kwargs)
            environment = ["LIBP2P_TCP_REUSEPORT=false"] * config.known_address + ["GOMAXPROCS=1"] * config.one_core
            return ["env", *environment, *command] if environment else command

    return P2PInFolder


def _is_any(address: str) -> bool:
    return ipaddress.ip_address(address.split("/")[2]).is_unspecified


def _has_global_address() -> bool:
    """Whether packets to the internet leave with an address of the internet. None is sent."""
    for family, anywhere in ((socket.AF_INET, "198.51.100.1"), (socket.AF_INET6, "2001:db8::1")):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((anywhere, 9))
            if ipaddress.ip_address(probe.getsockname()[0]).is_global:
                return True
    return False
