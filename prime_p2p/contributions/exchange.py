"""Certificates between peers: ours are given to whoever asks, and those that we lack are asked for now and then.

So a late joiner comes to have the whole history that has room, and certificates survive those who made them.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable

from prime_p2p.contributions.choice import Wanted
from prime_p2p.contributions.conversation import FAILURES, ask_certificates, ask_held
from prime_p2p.contributions.ledger import Ledger
from prime_p2p.contributions.messages import (
    CONTRIBUTIONS,
    MOST_BYTES,
    MOST_STEPS,
    AskCertificates,
    AskHeld,
    Certificates,
    Held,
    pack_certificates,
    pack_held,
    protocol,
)
from prime_p2p.network import dropped, tasks
from prime_p2p.network.allowance import Allowance
from prime_p2p.network.node import Node
from prime_p2p.network.streams import Stream
from prime_p2p.swarm.certificate import Certificate

logger = logging.getLogger(__name__)

RATE, STOCK = 256e3, 4e6  # bytes a second that one asker is given, and at once
LEAST = 16e3  # bytes that an answer counts as, for what it takes to look
RATE_OF_ALL, STOCK_OF_ALL = 1e6, 16e6  # and all of them together
IDLE = 5.0  # seconds that an asker may be silent
FELLOWS = 3  # that are asked what they have
PAUSE = 10.0  # seconds between two answers that are fetched: 1.5 MiB a minute
LONGEST_PAUSE = 600.0  # seconds between two looks at what fellows have, where there is nothing to take
LONGEST_LOOK = 600.0  # seconds until what fellows have is looked at anew: those of before may give next to nothing
RECENT = 256  # outer steps that a look is about; one in each of the longest pauses is about all of them


class Exchange:
    """Serves a ledger and fills it. ``fellows`` are those to ask; ``step`` is the outer step of the state that we hold.

    All methods but the constructor are for the loop's thread.
    """

    def __init__(
        self, node: Node, run: str, ledger: Ledger, fellows: Callable[[], list[str]], step: Callable[[], int]
    ) -> None:
        self._node = node
        self._run = run
        self._ledger = ledger
        self._fellows = fellows
        self._step = step
        self._made: asyncio.Queue[Certificate] = asyncio.Queue()
        self._allowance = Allowance(RATE, STOCK)
        self._allowance_of_all = Allowance(RATE_OF_ALL, STOCK_OF_ALL)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Serve, and ask others from now on; it ends with the node."""
        await self._node.serve(protocol(self._run), CONTRIBUTIONS, self._answer, to_all=True)
        self._tasks = [asyncio.create_task(go()) for go in (self._keep_made, self._keep_looking)]
        self._node.closes(self._close)

    async def _close(self) -> None:
        await tasks.end(self._tasks)
        while not self._made.empty():
            await self._keep(self._made.get_nowait(), ours=True)

    def keep(self, certificate: Certificate) -> None:
        """Keep the certificate of a commit of ours; it is written in a moment."""
        self._made.put_nowait(certificate)

    async def _keep_made(self) -> None:
        while True:
            await self._keep(await self._made.get(), ours=True)

    async def _keep(self, certificate: Certificate, *, ours: bool) -> bool:
        try:
            return await asyncio.to_thread(self._ledger.add, certificate, ours=ours)
        except OSError as error:  # others have it too
            logger.warning("the certificate of outer step %d is not kept: %s", certificate.group.step + 1, error)
            return False

    # ---- giving

    async def _answer(self, stream: Stream) -> None:
        asked = await stream.receive(stall=IDLE)
        if isinstance(asked, AskHeld):
            payload = pack_held(self._ledger.held(asked.since))
            await self._in_turn(stream.peer_id, len(payload))
            await stream.send(Held(), payload, stall=IDLE)
        elif isinstance(asked, AskCertificates):
            payload = pack_certificates(await asyncio.to_thread(self._ledger.read, asked.steps, MOST_BYTES))
            await self._in_turn(stream.peer_id, len(payload))
            await stream.send(Certificates(), payload, stall=IDLE)

    async def _in_turn(self, peer: str, size: int) -> None:
        cost = max(LEAST, size)
        waits = self._allowance.take(peer, cost), self._allowance_of_all.take("", cost)
        await asyncio.sleep(max(waits))

    # ---- taking

    async def _keep_looking(self) -> None:
        loop = asyncio.get_running_loop()
        pause, whole_look_at = PAUSE, loop.time()
        while True:
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            fellows = self._fellows()
            if not fellows:
                continue
            since = max(0, self._step() - RECENT)
            if loop.time() >= whole_look_at:
                since, whole_look_at = 0, loop.time() + LONGEST_PAUSE
            took = await self._look(random.sample(fellows, min(FELLOWS, len(fellows))), since)
            pause = PAUSE if took else min(2 * pause, LONGEST_PAUSE)

    async def _look(self, fellows: list[str], since: int) -> bool:
        """Take what these have and we lack of outer steps that lie behind us; whether there was anything.

        They take turns, so that one which gives little at a time does not hold up what the others have.
        """
        until = asyncio.get_running_loop().time() + LONGEST_LOOK
        found = await asyncio.gather(*(self._held_by(peer, since) for peer in fellows))
        mine, oldest = self._ledger.held(since), self._ledger.oldest
        last = self._step() - 1  # the certificate that led to our state may be on its way to the ledger
        held = dict(zip(fellows, found, strict=True))
        wanted = Wanted(held, lambda step: oldest <= step < last and step not in mine)
        took, turns = False, Counter[str]()
        while wanted and asyncio.get_running_loop().time() < until:
            orders = wanted.orders(MOST_STEPS)
            peer = min(orders, key=lambda fellow: turns[fellow])
            turns[peer] += 1
            order = orders[peer]
            took |= await self._take(peer, order, wanted)
            if wanted:
                await asyncio.sleep(PAUSE)
        return took

    async def _held_by(self, peer: str, since: int) -> dict[int, bytes]:
        try:
            return await ask_held(self._node, self._run, peer, since)
        except FAILURES as error:
            logger.debug("%s does not say which certificates it has: %s", peer, error)
            return {}

    async def _take(self, peer: str, order: dict[int, bytes], wanted: Wanted) -> bool:
        """Fetch some of an order; whether there was anything to keep."""
        try:
            given = await ask_certificates(self._node, self._run, peer, order)
        except FAILURES as error:
            logger.debug("%s gives no certificates: %s", peer, error)
            wanted.lose(peer)
            return False
        for step, reason in given.rejected.items():
            dropped.note("certificate", reason, peer)
            wanted.refuse(peer, step)
        for certificate in given.certificates:
            wanted.done(certificate.group.step)
        if not given.certificates and not given.rejected:
            wanted.lose(peer)
        return any([await self._keep(certificate, ours=False) for certificate in given.certificates])
