"""Watches a run without being a peer of it: reads the heartbeats, and asks the peers for their news."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from prime_p2p.bulletin.messages import NEWS, AskNews, NewsLines, protocol, read
from prime_p2p.contributions.collect import ASKED, Collected, ask_all
from prime_p2p.errors import Unreachable
from prime_p2p.network import clock, tasks
from prime_p2p.network.deadline import within
from prime_p2p.network.frames import FrameError
from prime_p2p.network.node import Node, NodeConfig
from prime_p2p.network.streams import StreamClosed, StreamError
from prime_p2p.public import manifest_records
from prime_p2p.public.manifest import SignedManifest
from prime_p2p.swarm.certificate import Certificate
from prime_p2p.swarm.membership import peers_key, read_heartbeat, runs, which
from prime_p2p.temporary import TemporaryFolder
from prime_p2p.watching.view import RunView

logger = logging.getLogger(__name__)

LOOK_EVERY = 2.0  # seconds between two looks at the heartbeats of a few peers
LOOK_OF_MANY = 100  # peers; with more of them looks are as much rarer
ASK_EVERY = 1.0  # seconds between two questions to a peer
AGAIN = 2.0  # seconds until a peer that gave no news is asked again; up to ``AGAIN_AT_MOST`` where that goes on
AGAIN_AT_MOST = 30.0
PATIENCE = 6.0  # seconds for an answer
MOST_ASKED = 200  # peers whose news are asked for; of others only the heartbeats are seen
MANIFEST_EVERY = 30.0  # seconds between two looks at a public run's manifest
DEADLINE = 15.0  # seconds for what is looked up at the start


class Watcher:
    """What is seen of one run; ``view`` is kept up to date in the loop until the watcher is closed."""

    def __init__(self, node: Node, run: str) -> None:
        self.view = RunView(run)
        self.signed: SignedManifest | None = None
        """The newest manifest, where the run is a public one."""
        self._node = node
        self._run = run
        self._changed = asyncio.Condition()
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._looking: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Take a first look, and go on looking. Raises Unreachable where the DHT does not answer in time."""
        try:
            await within(DEADLINE, self._look())
            await within(DEADLINE, self._read_manifest())
        except asyncio.TimeoutError:
            raise Unreachable(f"the DHT did not answer within {DEADLINE:.0f} s; try again") from None
        self._looking = [asyncio.create_task(keep()) for keep in (self._keep_looking, self._keep_reading_the_manifest)]

    async def close(self) -> None:
        """Stop looking and asking."""
        await tasks.end([*self._looking, *self._asking.values()])

    async def change(self, since: int, timeout: float) -> int:
        """Wait until ``view.version`` is another than ``since``, or so many seconds; returns what it is then."""
        async with self._changed:
            with suppress(asyncio.TimeoutError):
                await within(timeout, self._changed.wait_for(lambda: self.view.version != since))
        return self.view.version

    async def certificates(self, since: int) -> list[Certificate]:
        """What groups have signed of the outer steps from ``since`` on, in their order, checked.

        Raises Unreachable where no peer answers.
        """
        peers = [peer.peer_id for peer in self.view.present]
        some = random.sample(peers, min(ASKED, len(peers)))
        return (await ask_all(self._node, some, Collected(self._run, since))).certificates

    # ---- heartbeats and manifest

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY * max(1.0, len(self.view.peers) / LOOK_OF_MANY))
            await self._look_in_time()

    async def _look_in_time(self) -> None:
        try:
            await within(DEADLINE, self._look())
        except asyncio.TimeoutError:
            logger.warning("the DHT did not answer within %.0f s", DEADLINE)
        except Exception:
            logger.exception("the DHT failed; trying again")

    async def _look(self) -> None:
        records = await self._node.lookup(peers_key(self._run))
        beats = {peer: read_heartbeat(peer, value) for peer, value in records.items()}
        if not self._node.online:
            return  # we see nobody, which says nothing of them
        self.view.looked({peer: beat for peer, beat in beats.items() if beat is not None}, clock.now())
        self._ask_those_who_are_there()
        await self._notify()

    async def _keep_reading_the_manifest(self) -> None:
        while True:
            await asyncio.sleep(MANIFEST_EVERY)
            try:
                await within(DEADLINE, self._read_manifest())
            except asyncio.TimeoutError:
                logger.warning("the DHT did not answer within %.0f s", DEADLINE)
            except Exception:
                logger.exception("the DHT failed; trying again")

    async def _read_manifest(self) -> None:
        if "/" not in self._run:
            return
        seal = None if self.signed is None else self.signed.seal
        found = await manifest_records.newest(self._node, self._run, seal)
        if found is not None:
            self.signed = found

    # ---- news

    def _ask_those_who_are_there(self) -> None:
        self._asking = {peer: task for peer, task in self._asking.items() if not task.done()}
        for peer in self.view.present:
            if len(self._asking) >= MOST_ASKED:
                return
            if peer.peer_id not in self._asking:
                self._asking[peer.peer_id] = asyncio.create_task(self._keep_asking(peer.peer_id))

    async def _keep_asking(self, peer_id: str) -> None:
        """Until the peer has gone. One whose stream ends is asked again at once: it may only have closed it."""
        pause, session, last, answered = 0.0, b"", 0, False
        while self._is_there(peer_id):
            await asyncio.sleep(pause)
            try:
                async for answer in self._answers(peer_id, session, last):
                    session, last, answered, pause = answer.session, answer.last, True, 0.0
            except StreamClosed:
                pause = max(AGAIN, pause)  # it has no room for us, or is leaving
            except (StreamError, FrameError) as error:
                logger.info("no news of %s: %s", peer_id, error)
                if answered and pause and await self._node.check():
                    await self._look_in_time()  # it may have said that it leaves
                    self.view.silent(peer_id, clock.now())
                    await self._notify()
                    answered = False
                pause = min(AGAIN_AT_MOST, 2 * pause) or AGAIN / 4

    def _is_there(self, peer_id: str) -> bool:
        peer = self.view.peers.get(peer_id)
        return peer is not None and not peer.gone

    async def _answers(self, peer_id: str, session: bytes, last: int) -> AsyncIterator[NewsLines]:
        stream = await self._node.open(peer_id, protocol(self._run), NEWS, timeout=PATIENCE)
        try:
            while self._is_there(peer_id):  # one that has left may answer for ever, in the place of another
                await stream.send(AskNews(session=session, after=last), stall=PATIENCE)
                answer = await stream.receive(stall=PATIENCE)
                if not isinstance(answer, NewsLines):
                    raise FrameError(f"{peer_id}: a question in answer to one")
                news = read(await stream.receive_payload(stall=PATIENCE))
                session, last = answer.session, answer.last
                self.view.heard(peer_id, news, clock.now())
                await self._notify()
                yield answer
                await asyncio.sleep(ASK_EVERY)
        finally:
            stream.close()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def watching(bootstrap: Sequence[str], run: str | None) -> AsyncIterator[Watcher]:
    """A watcher of a run, which has taken a first look; ``run`` may be left out where only one is known there.

    Raises:
        BadInput: an address cannot be used, the run is not known there, or it is not clear which is meant.
        Unreachable: nobody answered.
    """
    with TemporaryFolder() as folder:
        node = await Node.create(NodeConfig(folder / "identity.key", tuple(bootstrap)))
        try:
            try:
                known = await within(DEADLINE, runs(node))
            except asyncio.TimeoutError:
                raise Unreachable(f"the DHT did not answer within {DEADLINE:.0f} s; try again") from None
            watcher = Watcher(node, which(known, run))
            try:
                await watcher.start()
                yield watcher
            finally:
                await watcher.close()
        finally:
            await node.close()
