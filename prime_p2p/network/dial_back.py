"""Whether others can reach an address of mine: I ask them to try, they open a TCP connection to it and say hello.

A node is no tool to look at other machines with. It tries what is on the machine that asks: IP addresses that it is
connected from, and names that lead to one of those; a few in a request, and a few requests in a minute.
"""

import asyncio
import ipaddress
import random
import re
import socket
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from prime_p2p.errors import PrimeError
from prime_p2p.network.deadline import within
from prime_p2p.network.frames import FrameError, Message, Schema
from prime_p2p.network.node import Node
from prime_p2p.network.streams import Stream, StreamError
from prime_p2p.network.version import node_stream_name

PROTOCOL = node_stream_name("dial-back")
GREETING = b"\x13/multistream/1.0.0\n"  # what both sides of a libp2p connection say first
NOT_YOURS = "this is not where you are connected from"

MOST_ADDRESSES = 4  # in one request
ASKED = 3  # peers at once
_TRY = 3.0  # seconds for one address
_STALL = 10.0
_PEER_REQUESTS = 6  # of one peer in a minute
_REQUESTS = 60  # of all in a minute
_MINUTE = 60.0
_LONGEST_ADDRESS = 400  # characters
_TCP = re.compile(r"/(ip4|ip6|dns|dns4|dns6)/([^/]{1,253})/tcp/(\d{1,5})(/p2p/[A-Za-z0-9]{1,64})?")

IP = ipaddress.IPv4Address | ipaddress.IPv6Address
AddressText = Annotated[str, Field(max_length=_LONGEST_ADDRESS)]


class Request(Message):
    """Try to reach me at these addresses."""

    kind: ClassVar[str] = "request"
    addresses: Annotated[list[AddressText], Field(min_length=1, max_length=MOST_ADDRESSES)]


class Tried(BaseModel):
    """What came of one of them; ``address`` has the IP address that was tried in place of an unspecified one."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    address: AddressText
    works: bool
    reason: Annotated[str, Field(max_length=200)]


class Answer(Message):
    """What came of each, in the order of the request; none where the request is one too many."""

    kind: ClassVar[str] = "answer"
    tried: Annotated[list[Tried], Field(max_length=MOST_ADDRESSES)]


SCHEMA = Schema(Request, Answer)


@dataclass(frozen=True)
class Reach:
    """Whether an address works; ``reason`` is why not, and "" where it does."""

    address: str
    works: bool
    reason: str


class DialBack:
    """Asks other peers, and answers them."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._requests = Allowance(_PEER_REQUESTS, _REQUESTS, _MINUTE)

    async def serve(self) -> None:
        """Answer others from now on."""
        await self._node.serve(PROTOCOL, SCHEMA, self._answer)

    async def ask(self, addresses: Sequence[str], timeout: float) -> list[Reach]:
        """Have some of the peers that this node has a connection of its own to try these addresses, `MOST_ADDRESSES` at
        most, within `timeout` seconds; empty where none could be asked.

        An unspecified IP address, as in ``/ip4/0.0.0.0/tcp/31330``, stands for the one that the other side sees. An
        address works if one of them says so.
        """
        asked_for = [address for address in addresses if len(address) <= _LONGEST_ADDRESS][:MOST_ADDRESSES]
        if not asked_for:
            return []
        request = Request(addresses=asked_for)
        seen = {peer: direct(ends) for peer, ends in (await self._node.connections()).items()}
        reached = [peer for peer, ips in seen.items() if ips]
        # Those in the internet first: they are where most others are.
        reached.sort(key=lambda peer: (not any(ip.is_global for ip in seen[peer]), random.random()))
        asked = await asyncio.gather(*(self._ask(peer, request, timeout) for peer in reached[:ASKED]))
        found: dict[str, Reach] = {}
        for reach in (reach for answer in asked for reach in answer):
            before = found.get(reach.address)
            if before is None or (not before.works and (reach.works or before.reason == NOT_YOURS)):
                found[reach.address] = reach
        return list(found.values())

    async def _ask(self, peer_id: str, request: Request, timeout: float) -> list[Reach]:
        try:
            answer = await within(timeout, self._exchange(peer_id, request, timeout))
        except (StreamError, FrameError, asyncio.TimeoutError):
            return []
        pairs = zip(request.addresses, answer.tried, strict=False)
        return [_read(tried) for asked, tried in pairs if is_answer_to(asked, tried.address)]

    async def _exchange(self, peer_id: str, request: Request, timeout: float) -> Answer:
        stream = await self._node.open(peer_id, PROTOCOL, SCHEMA, timeout=timeout)
        try:
            await stream.send(request, stall=timeout)
            answer = await stream.receive(stall=timeout)
        finally:
            stream.close()
        if not isinstance(answer, Answer):
            raise FrameError(f"{peer_id}: a request in answer to one")
        return answer

    async def _answer(self, stream: Stream) -> None:
        request = await stream.receive(stall=_STALL)
        if not isinstance(request, Request):
            raise FrameError(f"{stream.peer_id}: an answer to nothing")
        tried: list[Tried] = []
        if self._requests.admit(stream.peer_id, time.monotonic()):
            seen = direct((await self._node.connections()).get(stream.peer_id, []))
            tried = list(await asyncio.gather(*(attempt(address, seen) for address in request.addresses)))
        await stream.send(Answer(tried=tried), stall=_STALL)


class Allowance:
    """Counts what is allowed so many times in a period, for each peer and for all of them."""

    def __init__(self, of_one: int, of_all: int, period: float) -> None:
        self._of_one, self._of_all, self._period = of_one, of_all, period
        self._all: deque[tuple[float, str]] = deque()
        self._counts: defaultdict[str, int] = defaultdict(int)

    def admit(self, peer_id: str, now: float) -> bool:
        """Whether this peer may once more; if so it has."""
        while self._all and self._all[0][0] <= now - self._period:
            _, gone = self._all.popleft()
            self._counts[gone] -= 1
            if not self._counts[gone]:
                del self._counts[gone]
        if len(self._all) >= self._of_all or self._counts.get(peer_id, 0) >= self._of_one:
            return False
        self._all.append((now, peer_id))
        self._counts[peer_id] += 1
        return True


def direct(ends: Iterable[str]) -> set[IP]:
    """The IP addresses at the other ends of connections, but not those of relays."""
    found: set[IP] = set()
    for end in ends:
        parts = end.split("/")
        if len(parts) > 2 and parts[1] in ("ip4", "ip6") and "p2p-circuit" not in parts:
            found.add(ipaddress.ip_address(parts[2]))
    return found


def ip_of(address: str) -> IP | None:
    """The IP address in a multiaddr; None where it has a name."""
    kind, host = address.split("/")[1:3]
    return ipaddress.ip_address(host) if kind in ("ip4", "ip6") else None


def is_answer_to(asked: str, answered: str) -> bool:
    """Whether an answer is about the address that was asked for, or what that stands for."""
    if asked == answered:
        return True
    one, other = _TCP.fullmatch(asked), _TCP.fullmatch(answered)
    if one is None or other is None or one.group(1, 3, 4) != other.group(1, 3, 4):
        return False
    try:
        ips = ip_of(asked), ip_of(answered)
    except ValueError:
        return False
    return ips[0] is not None and ips[0].is_unspecified and ips[1] is not None


async def attempt(address: str, seen: set[IP]) -> Tried:
    """Try to reach an address of a peer that is connected from these IP addresses."""
    try:
        ip, port, address = await within(_TRY, _target(address, seen))
        await within(_TRY, _greet(ip, port))
    except asyncio.TimeoutError:
        return Tried(address=address, works=False, reason=f"no answer within {_TRY:g} s")
    except _Refused as error:
        return Tried(address=address, works=False, reason=str(error))
    except OSError as error:
        return Tried(address=address, works=False, reason=(error.strerror or "the connection broke")[:200])
    return Tried(address=address, works=True, reason="")


class _Refused(PrimeError):
    """Nothing there was tried, or what answers is something else."""


async def _target(address: str, seen: set[IP]) -> tuple[IP, int, str]:
    """Where to connect to for an address, and the address with what takes the place of an unspecified one."""
    matched = _TCP.fullmatch(address)
    port = int(matched[3]) if matched is not None else 0
    if matched is None or not 0 < port < 65536:
        raise _Refused("only TCP addresses like /ip4/192.0.2.1/tcp/31330 can be tried")
    kind, host = matched.group(1, 2)
    if kind.startswith("dns"):
        allowed = seen.intersection(await _resolve(host, port, kind))
    else:
        wanted = _parsed(host)
        allowed = {ip for ip in seen if ip == wanted or (wanted.is_unspecified and ip.version == wanted.version)}
    if not allowed:
        raise _Refused(NOT_YOURS)
    ip = min(allowed, key=str)
    return ip, port, f"/{kind}/{host if kind.startswith('dns') else ip}/tcp/{port}{matched[4] or ''}"


def _parsed(host: str) -> IP:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        raise _Refused("this is no IP address") from None


async def _resolve(name: str, port: int, kind: str) -> set[IP]:
    family = {"dns4": socket.AF_INET, "dns6": socket.AF_INET6}.get(kind, socket.AF_UNSPEC)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, port, family=family, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise _Refused("this name leads nowhere") from None
    return {ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found}


async def _greet(ip: IP, port: int) -> None:
    """Say hello as libp2p does, and hear it.

    Raises:
        OSError: nobody is there.
        _Refused: somebody else is.
    """
    reader, writer = await asyncio.open_connection(str(ip), port)
    try:
        writer.write(GREETING)
        heard = await reader.readexactly(len(GREETING))
    except asyncio.IncompleteReadError as error:
        heard = error.partial
    finally:
        writer.transport.abort()
    if heard != GREETING:
        raise _Refused("what answers is not libp2p")


def _read(tried: Tried) -> Reach:
    """What a stranger says, fit for one short line."""
    reason = "" if tried.works else ascii(tried.reason)[1:-1] or "it does not work"
    return Reach(tried.address, tried.works, reason)
