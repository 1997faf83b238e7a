"""Getting a snapshot: which one to take, its list of pieces, and the download, resumed where one broke off."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Callable, Collection, Iterable

from prime_p2p.long_work import Advance, ignore
from prime_p2p.network import tasks
from prime_p2p.network.frames import FrameError
from prime_p2p.network.streams import StreamError
from prime_p2p.outer.state import OuterState
from prime_p2p.state.backlog import Backlog
from prime_p2p.state.choice import choose
from prime_p2p.state.client import Lacking, StateClient
from prime_p2p.state.download import Download
from prime_p2p.state.messages import Offers, TransferError
from prime_p2p.state.piece_file import Arrays, Contents, Growing
from prime_p2p.state.shelf import Shelf
from prime_p2p.state.standing import Standing

logger = logging.getLogger(__name__)

SUFFIX = ".download"
OFFERS_WITHIN = 1.0  # seconds for all to say what they give; then one answer that is of use is enough


class Snapshots:
    """Fetches snapshots into ``shelf.directory``, from ``peers()``: those who train the same, with a state or without.

    A download that breaks off, with this process too, leaves its file; the next one for the same state goes on with it.
    Meanwhile, and for some minutes after, its pieces are given to others.
    """

    def __init__(
        self, client: StateClient, shelf: Shelf, peers: Callable[[], Collection[str]], standing: Standing
    ) -> None:
        self._client = client
        self._shelf = shelf
        self._peers = peers
        self._standing = standing
        self.pieces = 0
        """Pieces fetched so far: grows as long as there is progress."""

    async def fetch(
        self, digest: bytes, n: int, reach: int, arrays: Arrays | None = None, advance: Advance = ignore
    ) -> OuterState:
        """A state of n parameters of the lineage that is at ``digest``, at most ``reach`` outer steps behind it.

        It is made in ``arrays``, anchor and momentum, where some are given; whatever is in them is lost. ``advance`` is
        told of its bytes. Raises TransferError where nobody gives a state, OSError where there can be no file for it.
        """
        offers = await self._offers(digest)
        files = self._shelf.directory.glob(f"*{SUFFIX}")
        begun = {bytes.fromhex(path.stem): path for path in files if re.fullmatch(r"(?:[0-9a-f]{2})*", path.stem)}
        for wanted in choose(offers, digest, reach, begun):
            givers = [peer for peer, answer in offers.items() if wanted in answer.snapshots]
            contents = await self._contents(givers, wanted, n)
            if contents is not None:
                for path in (path for other, path in begun.items() if other != wanted):
                    path.unlink(missing_ok=True)
                return await self._download(contents, arrays, advance)
        raise TransferError("nobody gives a snapshot that others agree with")

    async def _download(self, contents: Contents, arrays: Arrays | None, advance: Advance) -> OuterState:
        path = self._shelf.directory / f"{contents.digest.hex()}{SUFFIX}"
        file = await asyncio.to_thread(Growing.at, path, contents, arrays)
        count, found = len(contents.hashes), len(file.have)
        if found:
            logger.info("%d of %d pieces of a snapshot are here already", found, count)
            advance(sum(map(file.length_of, file.have)))
        self._shelf.put(file)
        kept = False
        try:
            backlog = Backlog(file)
            try:
                await Download(self._client, file, backlog, self._peers, self._standing, advance).run()
            finally:
                self.pieces += count - len(file.lacking) - found
                kept = await asyncio.to_thread(backlog.stop)
            state = await asyncio.to_thread(file.state)
        except BaseException:
            self._shelf.drop(file.digest)
            raise
        path.unlink(missing_ok=True)
        self._go_on_giving(file, state, kept)
        return state

    def _go_on_giving(self, file: Growing, state: OuterState, kept: bool) -> None:
        """Others get on from us what is in the file, and the rest while our state is the same."""
        try:
            if kept and file.have:
                self._shelf.complete(file.going_on(state))
                return
        except OSError as error:
            logger.warning("what was fetched is not given to others: %s", error)
        self._shelf.drop(file.digest)

    async def _offers(self, digest: bytes) -> dict[str, Offers]:
        """What the others give and know; those that take long are not waited for where one answer is of use."""
        offers: dict[str, Offers] = {}
        asking = {asyncio.create_task(self._ask(peer, offers)) for peer in self._good(self._peers())}
        timeout = OFFERS_WITHIN
        try:
            while asking:
                _, asking = await asyncio.wait(asking, timeout=timeout, return_when=asyncio.ALL_COMPLETED)
                if any(digest in answer.history for answer in offers.values()):
                    break
                timeout = OFFERS_WITHIN / 4
        finally:
            await tasks.end(asking)
        return offers

    async def _ask(self, peer: str, offers: dict[str, Offers]) -> None:
        try:
            offers[peer] = await self._client.offers(peer)
        except (StreamError, FrameError, TransferError) as error:
            self._standing.fail(peer, error)

    async def _contents(self, givers: Iterable[str], digest: bytes, n: int) -> Contents | None:
        for peer in self._good(givers):
            try:
                return await self._client.contents(peer, digest, n)
            except Lacking as error:
                logger.info("no list of pieces: %s", error)
            except (StreamError, FrameError, TransferError) as error:
                self._standing.fail(peer, error)
        return None

    def _good(self, peers: Iterable[str]) -> list[str]:
        """Those that may be asked, in another order each time, so that many who ask spread over those who give."""
        good = [peer for peer in peers if self._standing.good(peer)]
        random.shuffle(good)
        return good
