"""Facts about this machine's place in the network, found out by nodes that live for some seconds."""

from __future__ import annotations

import asyncio
import resource
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import uvloop

from prime_p2p.allreduce.plan import MOST_LANES, STREAMS
from prime_p2p.doctor.facts import (
    Bandwidth,
    Clock,
    Daemon,
    Descriptors,
    IdentityFile,
    Joined,
    Network,
    Port,
    Reached,
    Unknown,
)
from prime_p2p.doctor.place import Ask, Place
from prime_p2p.errors import BadInput, PrimeError
from prime_p2p.network import clock
from prime_p2p.network._hivemind import Multiaddr
from prime_p2p.network.deadline import within
from prime_p2p.network.dial_back import DialBack
from prime_p2p.network.identity import Identity
from prime_p2p.network.node import MAX_STREAMS, Node, NodeConfig, peer_of
from prime_p2p.network.ports import HeldPort, listen_addresses
from prime_p2p.network.speed import Speed
from prime_p2p.temporary import TemporaryFolder

_START = 10.0  # seconds for a daemon
_JOIN = 6.0  # seconds for a bootstrap address to answer
_ASK = 8.0  # seconds for others to connect to us
_MEASURE = 9.0  # seconds to measure the speed with one peer

_SERVED_AND_FETCHED = 16  # streams of state, given to others and taken from them
_OTHER_FILES = 64  # of a peer: libraries, data, journal and log; about 20 on a CPU, more with a GPU


def check_place(place: Place) -> None:
    """Raise BadInput where an address is none."""
    listen_addresses(place.hosts, place.port)
    for address in place.bootstrap:
        peer_of(address)


def look(place: Place, directory: Path, say: Callable[[str], None], until: float) -> Network:
    """The facts; ``until`` is when to stop looking, by the monotonic clock, and ``say`` is told what is being done."""
    with TemporaryFolder() as keys:
        return uvloop.run(_Look(place, keys, say, until).all(directory))


def descriptors(group: int) -> Descriptors:
    """Open files of a process, and what a group of so many peers takes of them, in the peer or in its daemon.

    A stream is a socket in both. The daemon has a connection to every peer beside, the peer has files. Everything at
    once is all the streams that others may open, and our own.
    """
    others = max(1, group - 1)
    lanes = min(MOST_LANES, -(-STREAMS // others))
    own = others * (1 + lanes)  # a control stream, and those of an all-reduce
    beside = others + _OTHER_FILES
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = 2 * own + _SERVED_AND_FETCHED + beside
    most = MAX_STREAMS + own + _SERVED_AND_FETCHED + beside
    return Descriptors(limit if limit != resource.RLIM_INFINITY else most, group, needed, most)


def identity(path: Path) -> IdentityFile:
    """The key that a peer would have. None is made."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return IdentityFile(path, "", "", False)
    except OSError as error:
        return IdentityFile(path, "", error.strerror or str(error), False)
    open_to_others = bool(mode & (stat.S_IRWXG | stat.S_IRWXO))
    try:
        return IdentityFile(path, Identity.load_or_create(path).peer_id, "", open_to_others)
    except BadInput as error:
        return IdentityFile(path, "", str(error), open_to_others)


def port(hosts: Sequence[str], number: int, or_next: bool = False) -> Port:
    """Whether a peer could listen there, or at the next free port, at this moment."""
    try:
        held = HeldPort(hosts, number, or_next)
    except BadInput as error:
        return Port(number, str(error))
    held.close()
    return Port(held.port if number else 0, "")


class _Look:
    """One look at the network. Keys of its nodes are in ``keys``: the peer that is meant may be running."""

    def __init__(self, place: Place, keys: Path, say: Callable[[str], None], until: float) -> None:
        self._place = place
        self._keys = keys
        self._say = say
        self._until = until

    async def all(self, directory: Path) -> Network:
        daemon, here = await self._daemon(), port(self._place.hosts, self._place.port, self._place.or_next)
        nobody = Unknown("nobody was asked: give the address of the swarm with --bootstrap")
        found = Network(
            descriptors=descriptors(self._place.group),
            identity=identity(directory / "identity.key"),
            port=here,
            daemon=daemon,
            joined=nobody,
            clock=Unknown("it was not compared: give the address of the swarm with --bootstrap"),
            reached=nobody,
            bandwidth=nobody,
        )
        if not self._place.bootstrap:
            return found
        if daemon.error:
            return _without_swarm(found, Unknown("it was not tried: there is no libp2p daemon"))
        return await self._join(found, here)

    async def _daemon(self) -> Daemon:
        self._say("starting a libp2p daemon")
        began = time.monotonic()
        error = ""
        try:
            node = await within(self._left(_START), Node.create(NodeConfig(self._keys / "alone.key")))
            try:
                error = "" if await node.check() else "the libp2p daemon does not answer"
            finally:
                await node.close()
        except asyncio.TimeoutError:
            error = f"the libp2p daemon did not answer within {_START:g} s"
        except PrimeError as failure:
            error = str(failure)
        return Daemon(time.monotonic() - began, error)

    async def _join(self, found: Network, port: Port) -> Network:
        """What only a node in the swarm can find out."""
        self._say("joining the swarm")
        place, began = self._place, time.monotonic()
        number = 0 if port.error else port.number
        config = NodeConfig(
            self._keys / "joined.key",
            place.bootstrap,
            hosts=place.hosts,
            port=number,
            announce=place.announce,
            join_timeout=self._left(_JOIN),
        )
        try:
            node = await within(self._left(2 * _JOIN + _START), Node.create(config))
        except clock.WrongClock as error:
            reason = Unknown("this machine's clock is too far off")
            return replace(_without_swarm(found, reason), clock=Clock(error.ahead))
        except BadInput:
            raise
        except (PrimeError, asyncio.TimeoutError) as error:
            joined = Joined(0.0, str(error) or "the swarm could not be joined in time")
            return replace(_without_swarm(found, Unknown("the swarm was not reached")), joined=joined)
        try:
            return replace(
                found,
                joined=Joined(time.monotonic() - began, ""),
                clock=Clock(time.time() - clock.now()),
                reached=await self._reached(node, port),
                bandwidth=await self._bandwidth(node),
            )
        finally:
            await node.close()

    async def _reached(self, node: Node, port: Port) -> Reached | Unknown:
        if port.error:
            return Unknown(f"nobody was asked: port {port.number} cannot be used")
        self._say("asking others to connect to this machine")
        timeout = self._left(_ASK)
        addresses = await node.addresses()
        direct = [address for address in addresses if "/tcp/" in address and "/p2p-circuit" not in address]
        if not direct:
            return Unknown("this machine has no address that others could be asked to connect to")
        try:
            answers = await within(timeout + 1, self._ask(node)(direct, timeout))
        except asyncio.TimeoutError:
            return Unknown(f"nobody has answered within {timeout:.0f} s")
        except PrimeError as error:
            return Unknown(f"nobody could be asked: {error}")
        if not answers:
            return Unknown("nobody could be asked to connect to this machine")
        return Reached(_port_of(direct[0]), answers)

    def _ask(self, node: Node) -> Ask:
        return DialBack(node).ask if self._place.dial_back is None else self._place.dial_back(node)

    async def _bandwidth(self, node: Node) -> Bandwidth | Unknown:
        """Measured with the first of the bootstrap peers that does."""
        speed = Speed(node)
        reason = "there is no time left to measure"
        for peer in dict.fromkeys(map(peer_of, self._place.bootstrap)):
            timeout = self._left(_MEASURE)
            if timeout < 1:
                break
            self._say(f"measuring how fast bytes come and go, with {peer}")
            try:
                measured = await speed.measure(peer, timeout)
            except PrimeError as error:
                reason = f"it was not measured: {error}"
                continue
            return Bandwidth(measured.up, measured.down)
        return Unknown(reason)

    def _left(self, most: float) -> float:
        return max(0.1, min(most, self._until - time.monotonic()))


def _port_of(address: str) -> int:
    return int(Multiaddr(address)["tcp"])


def _without_swarm(found: Network, reason: Unknown) -> Network:
    return replace(found, joined=reason, clock=reason, reached=reason, bandwidth=reason)
