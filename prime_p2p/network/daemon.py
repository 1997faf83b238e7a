"""The libp2p daemon: a process of ours that holds the connections, and the socket through which we talk to it.

hivemind starts it and carries the calls of its DHT. Streams, dials and questions about the host go through the daemon's
control socket from here, so that each of them has a deadline and leaves nothing open when it fails.
https://github.com/libp2p/go-libp2p-daemon/blob/master/specs/CONTROL.md
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from google.protobuf.message import DecodeError

from prime_p2p.errors import PrimeError
from prime_p2p.network import dropped
from prime_p2p.network._hivemind import Multiaddr, P2PDaemonError, PeerID, p2pd_pb2
from prime_p2p.network.calls import PendingCalls
from prime_p2p.network.daemon_config import START, DaemonConfig, options, p2p_class
from prime_p2p.network.deadline import within
from prime_p2p.network.pipe import EndOfBytes, Pipe, Stalled
from prime_p2p.temporary import TemporaryFolder

log = logging.getLogger(__name__)

_STOP = 2.0  # seconds for it to go down before it is killed
_ANSWER = 5.0  # seconds for questions it answers out of its own head
_MAX_ANSWER = 1 << 20  # bytes
_LONGEST_HOME = 50  # characters, so that the path of a socket stays within the 104 to 108 that systems allow
_MOST_ADDRESSES = 64  # of one peer
_P2P = 421  # multiaddr code of a peer id

Handler = Callable[[Pipe, str], Awaitable[None]]


class DaemonError(PrimeError):
    """The daemon is gone or could not do what it was asked."""


class Daemon:
    """The running daemon. Its owner is this process: it ends with it, whichever way that ends."""

    def __init__(self, p2p: Any, folder: TemporaryFolder) -> None:
        self.p2p = p2p
        self.peer_id: str = p2p.peer_id.to_base58()
        self._folder = folder
        self._incoming = folder.path / "streams.sock"
        self._server: asyncio.AbstractServer | None = None
        self._handlers: dict[str, Handler] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        p2p._client.control._pending_calls = PendingCalls()
        self._carriers = (p2p._client.control._read_task, p2p._client.control._write_task)
        for task in self._carriers:
            task.add_done_callback(_retrieve)

    @classmethod
    async def start(cls, config: DaemonConfig) -> "Daemon":
        """Start the daemon.

        Raises:
            DaemonError: it did not come up.
        """
        folder = TemporaryFolder(_LONGEST_HOME, in_memory=config.sockets_in_memory)
        started: list[Any] = []
        try:
            p2p = await within(2 * START, p2p_class(config, folder.path, started).create(**options(config)))
            daemon = cls(p2p, folder)
            await daemon._listen()
        except BaseException as error:
            for half in started:
                await _kill(half)
            folder.close()
            if isinstance(error, (P2PDaemonError, OSError, EOFError, asyncio.TimeoutError)):
                raise DaemonError(f"the libp2p daemon did not start: {str(error) or 'no answer'}") from None
            raise
        return daemon

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.p2p._child.returncode is None

    async def ended(self) -> str:
        """Return once the process has ended, or carries no calls of the DHT any more, and what came of it."""
        child = asyncio.ensure_future(self.p2p._child.wait())
        try:
            await asyncio.wait({child, *self._carriers}, return_when=asyncio.FIRST_COMPLETED)
            with suppress(asyncio.TimeoutError):  # they end with the process, a moment before it is known to have ended
                code = await within(_STOP, child)
                return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        finally:
            child.cancel()
        return "carries no calls of the DHT any more"

    async def addresses(self) -> list[str]:
        """Return the multiaddrs this host is known by, with its peer id."""
        response = await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.IDENTIFY), _ANSWER)
        return [f"{address}/p2p/{self.peer_id}" for address in _decoded(response.identify.addrs)]

    async def peers(self, timeout: float = _ANSWER) -> dict[str, list[str]]:
        """Return the peers there are connections to, and the multiaddrs of their ends."""
        response = await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS), timeout)
        ends: dict[str, list[str]] = {}
        for connection in response.peers:  # a peer with several connections is there several times
            ends.setdefault(PeerID(connection.id).to_base58(), []).extend(_decoded(connection.addrs))
        return ends

    async def listening(self, peer_id: str, timeout: float = _ANSWER) -> list[str]:
        """Return the multiaddrs that a peer there is a connection to listens on, as it says itself.

        Of one that has just connected, and has not said it yet, that is the end of the connection.

        Raises:
            DaemonError: there is no such connection any more.
        """
        find = p2pd_pb2.DHTRequest(
            type=p2pd_pb2.DHTRequest.FIND_PEER,
            peer=PeerID.from_base58(peer_id).to_bytes(),
            timeout=max(1, round(timeout)),
        )
        response = await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.DHT, dht=find), timeout)
        return _decoded(response.dht.peer.addrs)

    async def dial(self, peer_id: str, addresses: Sequence[str], timeout: float) -> None:
        """Connect to a peer, at one of `addresses` or where libp2p knows it to be.

        Raises:
            DaemonError: with the reason it did not work.
        """
        request = p2pd_pb2.ConnectRequest(
            peer=PeerID.from_base58(peer_id).to_bytes(),
            addrs=[_encoded(address.removesuffix(f"/p2p/{peer_id}")) for address in addresses],
            timeout=max(1, round(timeout)),
        )
        try:
            await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=request), timeout)
        except DaemonError as error:
            raise DaemonError(_reason(str(error), addresses)) from None

    async def open(self, peer_id: str, protocol: str, timeout: float) -> Pipe:
        """Return a stream to a peer that handles `protocol`.

        Raises:
            DaemonError: with the reason it did not work.
        """
        request = p2pd_pb2.StreamOpenRequest(
            peer=PeerID.from_base58(peer_id).to_bytes(), proto=[protocol], timeout=max(1, round(timeout))
        )
        pipe = await self._connect(timeout)
        try:
            await self._exchange(pipe, p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=request), timeout)
        except BaseException:
            pipe.abort()
            raise
        return pipe

    async def handle(self, protocol: str, handler: Handler) -> None:
        """Call `handler(pipe, peer_id)` in a task of its own for every stream that is opened for `protocol`."""
        self._handlers[protocol] = handler
        address = Multiaddr(f"/unix{self._incoming}").to_bytes()
        request = p2pd_pb2.StreamHandlerRequest(addr=address, proto=[protocol], balanced=False)
        await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_HANDLER, streamHandler=request), _ANSWER)

    async def close(self) -> None:
        """End the daemon and everything it carries. May be called again, also where it was cancelled."""
        if self._server is not None:
            self._server.close()
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP)
        child = self.p2p._child
        try:
            await within(_STOP, self.p2p.shutdown())
        except asyncio.TimeoutError:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()
        finally:
            self._folder.close()

    async def _listen(self) -> None:
        """Take the streams that the daemon hands over from other peers."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(partial(Pipe, self._connected), str(self._incoming))

    def _connected(self, pipe: Pipe) -> None:
        task = asyncio.ensure_future(self._dispatch(pipe))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _dispatch(self, pipe: Pipe) -> None:
        try:
            info = p2pd_pb2.StreamInfo.FromString(await read_delimited(pipe, _ANSWER))
            await self._handlers[info.proto](pipe, PeerID(info.peer).to_base58())
        except (EndOfBytes, Stalled, DecodeError) as error:
            dropped.note("stream", f"it came to nothing: {error!r}")
            pipe.abort()
        except BaseException:
            pipe.abort()
            raise

    async def _ask(self, request: Any, timeout: float) -> Any:
        pipe = await self._connect(timeout)
        try:
            return await self._exchange(pipe, request, timeout)
        finally:
            pipe.abort()

    async def _connect(self, timeout: float) -> Pipe:
        path = self.p2p.daemon_listen_maddr["unix"]
        loop = asyncio.get_running_loop()
        try:
            _, pipe = await within(timeout, loop.create_unix_connection(Pipe, path))
        except (OSError, asyncio.TimeoutError):
            raise DaemonError("the libp2p daemon is gone") from None
        return pipe

    async def _exchange(self, pipe: Pipe, request: Any, timeout: float) -> Any:
        data = request.SerializeToString()
        try:
            await pipe.write([_varint(len(data)), data], timeout)
            response = p2pd_pb2.Response.FromString(await read_delimited(pipe, timeout))
        except Stalled:
            raise DaemonError(f"no answer within {timeout:g} s") from None
        except (EndOfBytes, DecodeError):
            raise DaemonError("the libp2p daemon is gone") from None
        if response.type == p2pd_pb2.Response.ERROR:
            raise DaemonError(" ".join(response.error.msg.split()))
        return response


def _reason(message: str, addresses: Sequence[str]) -> str:
    """Why a dial failed at one of `addresses`, of all that the daemon has to say about all the peer's addresses."""
    reasons = dict(part.split("] ", 1) for part in message.split(" * [") if "] " in part)
    wanted = (reasons.get(address.rpartition("/p2p/")[0]) for address in addresses)
    return next((reason for reason in wanted if reason), message)


async def _kill(half: Any) -> None:
    """End the process of a P2P that did not start; its own tasks would keep it alive."""
    half._terminate()
    if half._child is not None and half._child.returncode is None:
        with suppress(ProcessLookupError):
            half._child.kill()
        await half._child.wait()


def _retrieve(task: asyncio.Task[None]) -> None:
    """Take the error of a task that nobody awaits: its cause, a dead daemon, is noticed elsewhere."""
    if not task.cancelled():
        task.exception()


def _decoded(addresses: Iterable[bytes]) -> list[str]:
    """Multiaddrs as text, but for those with protocols that this machine's hivemind does not know; not without end."""
    texts = []
    for address in islice(addresses, _MOST_ADDRESSES):
        with suppress(ValueError, LookupError, TypeError, OverflowError):
            texts.append(str(Multiaddr(address)))
    return texts


def _encoded(address: str) -> bytes:
    """The binary form of a multiaddr. hivemind's own wraps peer ids in CIDs, which the daemon does not read."""
    first, *others = address.split("/p2p/")
    encoded = Multiaddr(first).to_bytes()
    for part in others:
        peer_id, slash, rest = part.partition("/")
        raw = PeerID.from_base58(peer_id).to_bytes()
        encoded += _varint(_P2P) + _varint(len(raw)) + raw + (Multiaddr(slash + rest).to_bytes() if rest else b"")
    return encoded


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


async def read_delimited(pipe: Pipe, stall: float) -> bytes:
    """Return a protobuf message's bytes; before them comes their length as a varint."""
    length, shift, byte = 0, 0, memoryview(bytearray(1))
    while True:
        await pipe.read(byte, stall)
        length |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] < 0x80:
            break
        if length > _MAX_ANSWER:
            raise DecodeError("too long")
    data = bytearray(length)
    await pipe.read(memoryview(data), stall)
    return bytes(data)
