"""Keeps a libp2p daemon under a node: one that dies, or answers nothing any more, is replaced by another.

The new daemon has the same identity and addresses, serves the same protocols and meets the same peers again. What the
one before carried is lost: its streams break, which is how their users learn of it.
"""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from prime_p2p.errors import PrimeError
from prime_p2p.network import relay, tasks
from prime_p2p.network.board import Board
from prime_p2p.network.daemon import Daemon, DaemonError, Handler
from prime_p2p.network.daemon_config import DaemonConfig
from prime_p2p.network.deadline import within
from prime_p2p.network.identity import Identity

log = logging.getLogger(__name__)

_LOOK_EVERY = 1.0  # seconds between two looks at a daemon that answers, and at whom it is connected to
_ANSWER = 5.0  # seconds it has for one answer
_UNANSWERED = 3  # looks in a row without an answer after which it is replaced
_PROMPT = 1.0  # seconds for its answer where somebody waits to hear whether it is there
_BOARD = 15.0  # seconds for a new board to be served by a new daemon
_PAUSES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # seconds before each try to start another one
_STEADY = 10.0  # seconds a daemon has lived for the pauses to begin anew


class Supervisor:
    """The daemon under a node and the board over it, which are replaced together."""

    def __init__(self, config: DaemonConfig, identity: Identity, rpc_timeout: float) -> None:
        self.daemon: Daemon
        self.board: Board
        self.over = False
        """Whether there will be no daemon any more: none could be started, or this was closed."""
        self.online = False
        """Whether the daemon is there, as far as is known; `check` asks."""
        self.config = config
        self._identity = identity
        self._rpc_timeout = rpc_timeout
        self._handlers: dict[str, Handler] = {}
        self._decided = asyncio.Event()  # set while we are online, or when it is over
        self._asking = asyncio.Lock()
        self._asked_at = 0.0  # the loop's time
        self._replacing = False
        self._wished = asyncio.Event()  # set while a daemon with another configuration is wanted
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the first daemon.

        Raises:
            DaemonError: it did not come up.
        """
        self.daemon, self.board = await self._started()
        self._set_online(True)

    def watch(self) -> None:
        """Replace the daemon whenever it is gone, from now until `close`."""
        self._watching = asyncio.ensure_future(self._watch())

    async def handle(self, protocol: str, handler: Handler) -> None:
        """Have this daemon, and every later one, call `handler` for streams that are opened for `protocol`.

        Raises:
            DaemonError: it is there, but cannot.
        """
        self._handlers[protocol] = handler
        try:
            await self.daemon.handle(protocol, handler)
        except DaemonError:
            if await self.check():
                raise

    async def check(self) -> bool:
        """Ask the daemon whether it is there; `online` is the answer until the next one."""
        began = asyncio.get_running_loop().time()
        async with self._asking:
            if self.online and self._asked_at <= began:
                await self._look(_PROMPT)
        return self.online

    def replace(self, **changes: Any) -> None:
        """Go on with another daemon, whose configuration has these changes; `decided` tells when it is there."""
        self.config = replace(self.config, **changes)
        self._replacing = True
        self._wished.set()
        self._set_online(False)

    async def decided(self) -> bool:
        """Wait until the daemon is there, or given up, which takes some minutes at most; return whether it is there."""
        await self._decided.wait()
        return not self.over

    async def close(self) -> None:
        """End everything, at whatever moment."""
        if self._watching is not None:
            await tasks.end([self._watching])
        self._end()
        if hasattr(self, "daemon"):
            await self._let_go()

    async def _started(self) -> tuple[Daemon, Board]:
        self._wished.clear()
        daemon = await relay.started(self.config)
        try:
            board = await within(_BOARD, Board.create(daemon, self._identity, self._rpc_timeout))
            for protocol, handler in list(self._handlers.items()):
                await daemon.handle(protocol, handler)
        except BaseException as error:
            await daemon.close()
            if isinstance(error, asyncio.TimeoutError):
                raise DaemonError(f"the libp2p daemon served no calls within {_BOARD:g} s") from None
            raise
        return daemon, board

    async def _let_go(self) -> None:
        await self.board.close()
        await self.daemon.close()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        pauses = iter(_PAUSES)
        try:
            while True:
                since = loop.time()
                reason = await self._gone()
                gone_at = loop.time()
                self._replacing = True
                self._set_online(False)
                wished = self._wished.is_set()
                log.log(logging.INFO if wished else logging.ERROR, "the libp2p daemon %s; starting another one", reason)
                if wished or gone_at - since > _STEADY:
                    pauses = iter(_PAUSES)
                if not await self._replace(pauses):
                    log.error("the libp2p daemon could not be started again")
                    break
                self._replacing = self._wished.is_set()
                self._set_online(not self._replacing)
                level = logging.INFO if wished else logging.WARNING
                log.log(level, "the libp2p daemon is back after %.1f s", loop.time() - gone_at)
        except Exception:
            log.exception("the libp2p daemon cannot be watched any more")
        self._end()

    async def _gone(self) -> str:
        """Wait for the end of the daemon, or until another one is wanted, and return what came of it."""
        ended = asyncio.ensure_future(self.daemon.ended())
        wished = asyncio.ensure_future(self._wished.wait())
        unanswered = 0
        try:
            while unanswered < _UNANSWERED:
                timeout = 0 if unanswered else _LOOK_EVERY
                await asyncio.wait({ended, wished}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    return ended.result()
                if wished.done():
                    return "is to have another configuration"
                unanswered = 0 if await self._look(_ANSWER) else unanswered + 1
                if not unanswered:
                    await self.board.locate()
            return f"has not answered for {_UNANSWERED * _ANSWER:g} s"
        finally:
            ended.cancel()
            wished.cancel()

    async def _look(self, timeout: float) -> bool:
        """Whether the daemon answers; if so, keep in mind whom it is connected to."""
        daemon = self.daemon
        self._asked_at = asyncio.get_running_loop().time()
        try:
            connected = await daemon.peers(timeout)
        except DaemonError:
            self._set_online(False)
            return False
        if not self._replacing and daemon is self.daemon:
            self.board.remember(connected)
            self._set_online(True)
        return True

    async def _replace(self, pauses: Iterator[float]) -> bool:
        """Start another daemon and meet the swarm again; False where that failed as often as there are pauses."""
        await self._let_go()
        for pause in pauses:
            await asyncio.sleep(pause)
            try:
                daemon, board = await self._started()
            except (PrimeError, OSError) as error:
                log.info("no libp2p daemon yet: %s", error)
                continue
            board.take_over(self.board)
            self.daemon, self.board = daemon, board
            await board.rejoin()
            return True
        return False

    def _end(self) -> None:
        self.over = True
        self._set_online(False)

    def _set_online(self, online: bool) -> None:
        self.online = online and not self.over
        if self.online or self.over:
            self._decided.set()
        else:
            self._decided.clear()
