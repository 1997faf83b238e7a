"""What a peer relays: asked in libp2p's own words, by taking a slot.

Every libp2p daemon relays a little, 128 KiB over a connection, whatever it is told. One that is told to relay more
starts both services at the same moment, and whichever is later answers. So a relay is asked before anybody relies on
it, also by the node that it belongs to. https://github.com/libp2p/specs/blob/master/relay/circuit-v2.md
"""

import logging
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from google.protobuf.message import DecodeError

from prime_p2p.network.daemon import Daemon, DaemonError, read_delimited
from prime_p2p.network.daemon_config import DaemonConfig
from prime_p2p.network.identity import Identity
from prime_p2p.network.pipe import EndOfBytes, Pipe, Stalled

log = logging.getLogger(__name__)

ENOUGH = 10**9  # bytes over a connection, each way: less is no relay to train through

_HOP = "/libp2p/circuit/relay/0.2.0/hop"
_RESERVE = b"\x02\x08\x00"  # a message of two bytes: its type is RESERVE
_OK = 100
_LIMIT, _STATUS, _DATA = 4, 5, 2  # fields of the answer, and of the limit in it
_UNLIMITED = 1 << 63
_ANSWER = 5.0  # seconds
# Daemons are started until one relays as it should, which freely every second to twelfth does. On one core the two
# services come in the right order, unless making the control socket takes a millisecond: what is in memory is quicker.
_WAYS = (*2 * [(False, False)], *4 * [(True, False)], *6 * [(True, True)])  # one core, sockets in memory


async def carries(daemon: Daemon, peer_id: str) -> int:
    """How many bytes each way a connected peer relays over a connection to this one; 0 where it does not."""
    try:
        pipe = await daemon.open(peer_id, _HOP, _ANSWER)
    except DaemonError:
        return 0
    try:
        return _limit(await _reserve(pipe))
    except (EndOfBytes, Stalled, DecodeError):
        return 0
    finally:
        pipe.abort()


async def _reserve(pipe: Pipe) -> bytes:
    await pipe.write([_RESERVE], _ANSWER)
    return await read_delimited(pipe, _ANSWER)


async def started(config: DaemonConfig) -> Daemon:
    """Start a daemon; one that is to relay does so as far as it is told.

    Raises:
        DaemonError: it did not come up.
    """
    if not config.limits.peers or config.loopback:
        return await Daemon.start(config)
    found = []
    for one_core, in_memory in _WAYS:
        daemon = await Daemon.start(replace(config, one_core=one_core, sockets_in_memory=in_memory))
        try:
            limit = await _relays(daemon, config.here)
        except BaseException:
            await daemon.close()
            raise
        if limit >= ENOUGH:
            return daemon
        found.append(limit)
        await daemon.close()
    log.warning(
        "this node relays no more than 128 KiB over a connection (%d starts: %s bytes); start it again to have it "
        "relay more",
        len(found),
        ", ".join(map(str, found)),
    )
    return await Daemon.start(config)


async def _relays(daemon: Daemon, address: str) -> int:
    """How much a daemon of this machine relays over a connection: another one, which lives for a moment, asks it."""
    with tempfile.TemporaryDirectory() as folder:
        identity = Identity.load_or_create(Path(folder) / "identity.key")
        stranger = await Daemon.start(DaemonConfig(identity.path, ("/ip4/127.0.0.1/tcp/0",)))
        try:
            await stranger.dial(daemon.peer_id, [address], _ANSWER)
            return await carries(stranger, daemon.peer_id)
        except DaemonError as error:
            log.warning("this machine does not reach its own node, to ask what it relays: %s", error)
            return 0
        finally:
            await stranger.close()


def _limit(answer: bytes) -> int:
    """The bytes that a relay's answer allows; 0 where it refuses. Raises DecodeError."""
    fields = dict(_fields(answer))
    if fields.get(_STATUS) != _OK:
        return 0
    limit = fields.get(_LIMIT, b"")
    data = dict(_fields(limit)).get(_DATA, 0) if isinstance(limit, bytes) else 0
    return data if isinstance(data, int) and data else _UNLIMITED


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message that has numbers and bytes only. Raises DecodeError."""
    at = 0

    def number() -> int:
        nonlocal at
        value, shift = 0, 0
        while True:
            if at >= len(message) or shift > 63:
                raise DecodeError("a number without an end")
            byte = message[at]
            value |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
        elif key & 7 == 2:
            size = number()
            if size > len(message) - at:
                raise DecodeError("too short")
            yield key >> 3, message[at : at + size]
            at += size
        else:
            raise DecodeError("neither a number nor bytes")
