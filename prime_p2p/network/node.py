"""A node: this peer on the network."""

import asyncio
import contextlib
import ipaddress
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from prime_p2p.errors import BadInput
from prime_p2p.network import dropped, relay
from prime_p2p.network._hivemind import Multiaddr
from prime_p2p.network.board import Board
from prime_p2p.network.daemon import DaemonError
from prime_p2p.network.daemon_config import DaemonConfig, RelayLimits
from prime_p2p.network.deadline import within
from prime_p2p.network.frames import FrameError, Schema
from prime_p2p.network.identity import Identity, is_peer_id
from prime_p2p.network.join import join
from prime_p2p.network.known import KnownPeers
from prime_p2p.network.pipe import Pipe
from prime_p2p.network.ports import hold_port, listen_addresses
from prime_p2p.network.streams import Stream, StreamClosed, StreamError, StreamLost, StreamStalled
from prime_p2p.network.supervisor import Supervisor

log = logging.getLogger(__name__)

MAX_STREAMS = 512  # that may be open, in both directions, when another peer opens one
MAX_STREAMS_OF_A_PEER = 32  # that one peer may have open to this one
SHARE_OF_A_PEER = 8  # and no more than this part of what is free: there is room for others, whoever takes all they can
MAX_VISITS = 64  # of them, for what is open to all: strangers take no more of the places

_ANNOUNCED = r"/\w+/[^/]+/(tcp/\d+|udp/\d+/quic-v1)"

StreamHandler = Callable[[Stream], Awaitable[None]]
Gate = Callable[[str], Awaitable[bool]]


@dataclass(frozen=True)
class NodeConfig:
    """Where a node is and whom it knows.

    Attributes:
        identity: file of the private key, made if there is none.
        bootstrap: multiaddrs of peers to find the others by, each with its /p2p/ part.
        hosts, port: IP addresses and the TCP port to listen on; port 0 is any free one.
        quic: listen on QUIC too, at the UDP port of the same number.
        or_next: take the next free port above it where it is taken.
        announce: multiaddrs others shall use instead of the ones this node sees itself.
        relay: serve as a relay for peers behind NAT, within these limits; needs a public address.
        known: file of the peers met before, who are tried where no bootstrap peer answers; it is kept up to date.
        may_be_first: go on where no bootstrap peer answers; they are looked for again all the time.
        join_timeout: seconds for a bootstrap address to answer; all are tried at once, and one is enough.
        rpc_timeout: seconds for one call of the DHT.
    """

    identity: Path
    bootstrap: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ("127.0.0.1",)
    port: int = 0
    or_next: bool = False
    announce: tuple[str, ...] = ()
    relay: RelayLimits | None = None
    known: Path | None = None
    may_be_first: bool = False
    join_timeout: float = 15.0
    rpc_timeout: float = 2.0
    quic: bool = False


class Node:
    """One peer on the network: it publishes and looks up signed records, and opens and serves streams.

    The libp2p daemon under it is replaced when it dies, in a second or two. Until then no stream can be opened, nobody
    takes a record, and only the records that this peer has itself are found.
    """

    def __init__(self, supervisor: Supervisor, identity: Identity, opened: contextlib.AsyncExitStack) -> None:
        self.identity = identity
        self._opened = opened
        self._supervisor = supervisor
        self._streams: set[Stream] = set()
        self._taken: set[Stream] = set()  # of them, those that others have opened
        self._visits: set[Stream] = set()  # and those for what is open to all
        self._inbound: Counter[str] = Counter()
        self._visiting: Counter[str] = Counter()
        self._gate: Gate | None = None
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def create(cls, config: NodeConfig) -> "Node":
        """Start a node and join the swarm of its bootstrap peers.

        Raises:
            BadInput: an address, the identity or the port cannot be used.
            Unreachable: no bootstrap peer answered, says why for each of them; or this machine's clock is too far off.
        """
        bootstrap = {address: peer_of(address) for address in config.bootstrap}
        for address in config.announce:
            _check_announced(address)
        listen_addresses(config.hosts, config.port)
        async with contextlib.AsyncExitStack() as opened:
            holding = hold_port(config.hosts, config.port, config.or_next, udp=config.quic)
            held = opened.enter_context(contextlib.closing(await holding))
            identity = Identity.load_or_create(config.identity)
            opened.enter_context(identity.lock())
            others = {address: peer for address, peer in bootstrap.items() if peer != identity.peer_id}
            listen = listen_addresses(config.hosts, held.port, config.quic)
            limits = config.relay or RelayLimits(peers=0)
            public = config.relay is not None
            daemon = DaemonConfig(identity.path, listen, config.announce, public=public, limits=limits)
            supervisor = Supervisor(daemon, identity, config.rpc_timeout)
            opened.push_async_callback(supervisor.close)
            await supervisor.start()
            known = KnownPeers(config.known) if config.known else None
            met_before = known.addresses() if known else {}
            first = config.may_be_first
            await join(supervisor.board, others, met_before, config.join_timeout, may_be_first=first)
            supervisor.watch()
            if known:
                known.keep(lambda: supervisor.board.contacts())
                opened.push_async_callback(known.close)
            return cls(supervisor, identity, opened.pop_all())

    @property
    def peer_id(self) -> str:
        """The libp2p peer id, base58."""
        return self.identity.peer_id

    @property
    def alive(self) -> bool:
        """Whether this node goes on: it is not closed, and a libp2p daemon can be started under it."""
        return not self._supervisor.over

    @property
    def online(self) -> bool:
        """Whether the libp2p daemon is there. While it is not, no lost stream says anything of the peer it led to."""
        return self._supervisor.online

    async def check(self) -> bool:
        """Ask the libp2p daemon whether it is there, which takes a second at most; `online` is the answer."""
        return await self._supervisor.check()

    async def back(self) -> bool:
        """Wait until this node is online, or not `alive` any more; return whether it is online."""
        return await self._supervisor.decided()

    async def addresses(self) -> list[str]:
        """Return the multiaddrs others may reach this node by, each with its /p2p/ part.

        Those that lead farthest come first: of the internet, then of a local network, then of this machine alone; of
        those that lead equally far TCP goes before QUIC.
        """
        addresses = await self._supervisor.daemon.addresses()
        return sorted(addresses, key=lambda address: (_farness(address), _is_quic(address)))

    @property
    def daemon_config(self) -> DaemonConfig:
        """How the libp2p daemon under this node meets the network."""
        return self._supervisor.config

    async def reconfigure(self, **changes: Any) -> bool:
        """Go on with a daemon whose configuration has these changes; return whether this node is online again.

        All streams break, and for a second or two nobody is there, as when a daemon dies.
        """
        self._supervisor.replace(**changes)
        return await self.back()

    async def relay_address(self, peer_id: str) -> str | None:
        """Return the address, with its /p2p/ part, of a connected peer that relays; None where it does not."""
        addresses = self._board.addresses_of(peer_id)
        if not addresses or await relay.carries(self._supervisor.daemon, peer_id) < relay.ENOUGH:
            return None
        return f"{min(addresses, key=_is_quic)}/p2p/{peer_id}"

    async def connections(self) -> dict[str, list[str]]:
        """Return the peers this node is connected to, and the multiaddrs of their ends; none while it is not online."""
        try:
            return await self._supervisor.daemon.peers()
        except DaemonError:
            return {}

    async def publish(self, key: str, value: dict[str, Any], ttl: float) -> bool:
        """Put `value` under `key` in this peer's name for `ttl` seconds; return whether another peer has taken it."""
        return await self._board.publish(key, value, ttl)

    async def lookup(self, key: str, copies: int | None = None) -> dict[str, dict[str, Any]]:
        """Return what peers say under `key`: peer id -> value; only what is signed and has not expired.

        With `copies` only so many of the peers that keep the records are asked.
        """
        return await self._board.lookup(key, copies)

    async def open(self, peer_id: str, protocol: str, schema: Schema, timeout: float) -> Stream:
        """Open a stream to a peer that serves `protocol`; it is the caller's to close.

        Raises:
            StreamStalled: it took longer than `timeout` seconds.
            StreamLost: the peer is not there or does not serve that.
        """
        try:
            pipe = await within(timeout, self._supervisor.daemon.open(peer_id, protocol, timeout))
        except asyncio.TimeoutError:
            raise StreamStalled(peer_id, f"no stream within {timeout:g} s") from None
        except (DaemonError, ValueError) as error:
            raise StreamLost(peer_id, f"no stream: {error}") from None
        return self._adopt(Stream(pipe, peer_id, schema))

    def guard(self, gate: Gate) -> None:
        """From now on take streams only of peers that `gate` lets in, but for what is served to all."""
        self._gate = gate

    def expel(self, admitted: Callable[[str], bool]) -> None:
        """Abort the streams that peers have opened which are not `admitted` any more."""
        for stream in [stream for stream in self._taken if not admitted(stream.peer_id)]:
            stream.abort()

    async def serve(self, protocol: str, schema: Schema, handler: StreamHandler, *, to_all: bool = False) -> None:
        """Run `handler(stream)` in a task of its own for every stream others open for `protocol`.

        The stream is closed when the handler returns. What a handler raises ends its stream and is logged in one line.
        Where the node has a guard, it says who may open one, unless the protocol is open `to_all`. There are
        `MAX_VISITS` places for such streams: their handlers are to be quick, and to give nobody more than a share.
        """

        async def serve_one(pipe: Pipe, peer_id: str) -> None:
            free, inbound = MAX_STREAMS - len(self._streams), self._inbound
            if to_all:
                free, inbound = min(free, MAX_VISITS - len(self._visits)), self._visiting
            if inbound[peer_id] >= streams_of_a_peer(free):
                dropped.note("stream", f"it has {inbound[peer_id]} open, of {len(self._streams)} in all", peer_id)
                pipe.abort()
                return
            inbound[peer_id] += 1
            try:
                if not to_all and self._gate is not None and not await self._gate(peer_id):
                    log.info("%s: refused, it is not admitted to the run", peer_id)
                    pipe.abort()
                    return
                stream = self._adopt(Stream(pipe, peer_id, schema), self._visits if to_all else self._taken)
                await _handle(protocol, handler, stream)
            finally:
                inbound[peer_id] -= 1
                if not inbound[peer_id]:
                    del inbound[peer_id]

        await self._supervisor.handle(protocol, serve_one)

    @property
    def _board(self) -> Board:
        return self._supervisor.board

    def _adopt(self, stream: Stream, *kinds: set[Stream]) -> Stream:
        for streams in (self._streams, *kinds):
            streams.add(stream)
            stream.on_closed(partial(streams.discard, stream))
        return stream

    def closes(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have this called when the node is closed, while its daemon is still there."""
        self._opened.push_async_callback(close)

    async def close(self) -> None:
        """Abort all streams and leave the network. May be called again, also while it runs."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for stream in list(self._streams):
            stream.abort()
        await self._opened.aclose()


def streams_of_a_peer(free: int) -> int:
    """How many streams one peer may have open to a node on which so many more may be opened."""
    return min(MAX_STREAMS_OF_A_PEER, -(-free // SHARE_OF_A_PEER))


async def _handle(protocol: str, handler: StreamHandler, stream: Stream) -> None:
    try:
        await handler(stream)
    except StreamClosed:
        stream.abort()
    except FrameError as error:
        dropped.note("frame", error, stream.peer_id)
        stream.abort()
    except StreamError as error:
        log.info("%s: a stream ended: %s", protocol, error)
        stream.abort()
    except Exception as error:
        log.error("%s: the handler of a stream of %s failed: %r", protocol, stream.peer_id, error)
        log.debug("%s failed here", protocol, exc_info=True)
        stream.abort()
    except BaseException:
        stream.abort()
        raise
    stream.close()
    await stream.wait_closed()


def peer_of(address: str) -> str:
    """The peer id of a bootstrap multiaddr: the last one, behind that of a relay if there is one.

    Raises:
        BadInput: it is no such address.
    """
    peer_id = address.rpartition("/p2p/")[2]
    if not _is_multiaddr(address) or not is_peer_id(peer_id):
        raise BadInput(f"bootstrap {address!r} is no multiaddr like /ip4/192.0.2.1/tcp/31337/p2p/12D3KooW...")
    return peer_id


def _check_announced(address: str) -> None:
    if re.fullmatch(_ANNOUNCED, address) is None or not _is_multiaddr(address):
        raise BadInput(
            f"announced {address!r} is no multiaddr like /dns4/node.example.org/tcp/31337, or for QUIC "
            "/dns4/node.example.org/udp/31337/quic-v1"
        )
    if re.search("/(tcp|udp)/0(/|$)", address):
        raise BadInput(f"announced {address!r} needs the port that others shall connect to")


def _is_multiaddr(address: str) -> bool:
    try:
        Multiaddr(address)
    except (ValueError, LookupError):
        return False
    return True


def _is_quic(address: str) -> bool:
    return "/udp/" in address


def _farness(address: str) -> int:
    """Smaller is for those from farther away."""
    kind, host = address.split("/")[1:3]
    if kind not in ("ip4", "ip6"):
        return 0
    ip = ipaddress.ip_address(host)
    return 2 if ip.is_loopback else 0 if ip.is_global else 1
