"""Control streams: one to every peer we deal with, kept open, with a sign of life on each of them.

Each direction of a pair is a stream of its own, opened by the sender. That a peer is lost means that its stream to us
broke or fell silent, or that ours to it cannot be opened or written.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from prime_p2p.errors import PrimeError
from prime_p2p.network import dropped
from prime_p2p.network.allowance import Allowance
from prime_p2p.network.deadline import within
from prime_p2p.network.frames import FrameError, Message
from prime_p2p.network.node import Node
from prime_p2p.network.streams import Stream, StreamError
from prime_p2p.network.tasks import end
from prime_p2p.network.version import stream_name
from prime_p2p.swarm.messages import CONTROL, Leave, Ping

logger = logging.getLogger(__name__)

PINGS_PER_STALL = 4
QUEUE = 256  # messages to one peer that may wait; a peer that takes none of so many is lost
UNREACHED = 10.0  # seconds without a link to a peer that has a heartbeat, after which that is worth a line
RATE, STOCK = 200.0, 1024.0  # messages of one peer that are taken a second, and at once: far above what a round has


@dataclass
class _Outgoing:
    queue: asyncio.Queue[Message] = field(default_factory=lambda: asyncio.Queue(QUEUE))
    task: asyncio.Task[None] | None = None


class Links:
    """Messages to and from other peers. ``on_message`` and ``on_lost`` are called in the loop and must not block.

    ``stall`` is the silence, in seconds, after which a peer is lost.
    """

    def __init__(
        self,
        node: Node,
        run: str,
        stall: float,
        on_message: Callable[[str, Message], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._node = node
        self._protocol = stream_name(run, "control")
        self._stall = stall
        self._on_message = on_message
        self._on_lost = on_lost
        self._outgoing: dict[str, _Outgoing] = {}
        self._incoming: dict[str, Stream] = {}
        self._kept: frozenset[str] = frozenset()
        self._unreached: dict[str, float] = {}  # peers that we cannot reach, and since when; inf once that was said
        self._allowance = Allowance(RATE, STOCK)

    async def serve(self) -> None:
        """Take control streams from now on."""
        await self._node.serve(self._protocol, CONTROL, self._listen)

    def keep(self, peers: Iterable[str]) -> None:
        """The peers to stay in touch with; links to others end when they break."""
        self._kept = frozenset(peers) - {self._node.peer_id}
        self._unreached = {peer: since for peer, since in self._unreached.items() if peer in self._kept}
        for peer in self._kept - set(self._outgoing):
            self._start(peer)

    def send(self, peer: str, message: Message) -> None:
        """Queue a message. Messages to one peer arrive in order, or the peer is reported lost."""
        outgoing = self._outgoing.get(peer) or self._start(peer)
        try:
            outgoing.queue.put_nowait(message)
        except asyncio.QueueFull:
            self._drop(peer, outgoing, f"it has taken none of {QUEUE} messages")

    def expel(self, admitted: Callable[[str], bool]) -> None:
        """End the links with all peers that are not admitted."""
        for peer, outgoing in list(self._outgoing.items()):
            if not admitted(peer):
                self._drop(peer, outgoing, "it is not admitted")

    async def close(self, farewell: float = 1.0) -> None:
        """Tell everyone that we leave, in at most ``farewell`` seconds, and end all links."""
        tasks = [outgoing.task for outgoing in self._outgoing.values() if outgoing.task is not None]
        for peer in list(self._outgoing):
            self.send(peer, Leave())
        if tasks:
            await asyncio.wait(tasks, timeout=farewell)
        await end(tasks)
        for stream in list(self._incoming.values()):
            stream.abort()

    def _start(self, peer: str) -> _Outgoing:
        outgoing = self._outgoing[peer] = _Outgoing()
        outgoing.task = asyncio.create_task(self._talk(peer, outgoing))
        return outgoing

    def _drop(self, peer: str, outgoing: _Outgoing, reason: str) -> None:
        if self._outgoing.get(peer) is not outgoing:
            return
        del self._outgoing[peer]
        if outgoing.task is not None and outgoing.task is not asyncio.current_task():
            outgoing.task.cancel()
        logger.debug("link to %s ended: %s", peer, reason)
        self._on_lost(peer)

    async def _talk(self, peer: str, outgoing: _Outgoing) -> None:
        """Send what is queued, and a ping where there is nothing to say, until the link breaks or we leave."""
        stream: Stream | None = None
        try:
            stream = await self._node.open(peer, self._protocol, CONTROL, timeout=self._stall)
            self._unreached.pop(peer, None)
            while True:
                try:
                    message = await within(self._stall / PINGS_PER_STALL, outgoing.queue.get())
                except asyncio.TimeoutError:
                    message = Ping()
                await stream.send(message, stall=self._stall)
                if isinstance(message, Leave):
                    stream.close()
                    await stream.wait_closed()  # the other side has read it
                    return
        except (StreamError, PrimeError) as error:
            check = await self._node.check()  # that it was not our own daemon that broke the link
            if stream is None and check:
                self._note_unreached(peer, error)
            self._drop(peer, outgoing, str(error))
        finally:
            if stream is not None:
                stream.close()

    def _note_unreached(self, peer: str, error: Exception) -> None:
        now = asyncio.get_running_loop().time()
        if peer in self._kept and now - self._unreached.setdefault(peer, now) > UNREACHED:
            self._unreached[peer] = math.inf
            logger.warning("peer %s is there but cannot be reached, so no round is made with it: %s", peer, error)

    async def _listen(self, stream: Stream) -> None:
        """Take a peer's messages until its stream breaks or falls silent, or the peer opens a newer one."""
        peer = stream.peer_id
        older = self._incoming.get(peer)
        self._incoming[peer] = stream
        if older is not None:
            older.abort()
        if peer not in self._outgoing:
            self._start(peer)  # a peer that talks to us gets to hear us
        try:
            while True:
                message = await stream.receive(stall=self._stall)
                if wait := self._allowance.take(peer):
                    await asyncio.sleep(wait)  # meanwhile what it sends waits on its own side
                self._on_message(peer, message)
        except FrameError as error:
            dropped.note("frame", error, peer)
        except StreamError as error:
            logger.debug("link from %s ended: %s", peer, error)
            await self._node.check()
        finally:
            if self._incoming.get(peer) is stream:
                del self._incoming[peer]
                self._on_lost(peer)
