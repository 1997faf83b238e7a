"""A peer's news for whoever asks, at a bounded cost: so many watchers at once, and each of them so often."""

from __future__ import annotations

import asyncio
from collections import Counter

from prime_p2p.bulletin.bulletin import Bulletin
from prime_p2p.bulletin.messages import NEWS, AskNews, NewsLines, protocol
from prime_p2p.network.frames import FrameError
from prime_p2p.network.node import Node
from prime_p2p.network.streams import Stream

MOST_WATCHERS = 16  # streams that are answered at a time
MOST_OF_A_PEER = 2  # of one peer: a broken one may still count when it opens the next
PACE = 1.0  # seconds at least between two answers on one stream
RATE = 8 * 1024  # bytes a second at most on one stream
IDLE = 60.0  # seconds that a watcher may ask nothing
_STALL = 10.0  # seconds for an answer to be taken


class NewsServer:
    """Answers watchers from a bulletin."""

    def __init__(self, node: Node, run: str, bulletin: Bulletin) -> None:
        self._node = node
        self._run = run
        self._bulletin = bulletin
        self._watchers: Counter[str] = Counter()  # streams by peer

    async def serve(self) -> None:
        """Answer from now on, whoever asks: a run is to be seen also by those whom it does not admit."""
        await self._node.serve(protocol(self._run), NEWS, self._answer, to_all=True)

    async def _answer(self, stream: Stream) -> None:
        watchers, peer = self._watchers, stream.peer_id
        if watchers.total() >= MOST_WATCHERS or watchers[peer] >= MOST_OF_A_PEER:
            return
        watchers[peer] += 1
        try:
            while True:  # until the other side closes the stream
                asked = await stream.receive(stall=IDLE)
                if not isinstance(asked, AskNews):
                    raise FrameError("an answer to nothing")
                last, payload = self._bulletin.after(asked.session, asked.after)
                answer = NewsLines(session=self._bulletin.session, last=last)
                await stream.send(answer, payload, stall=_STALL)
                await asyncio.sleep(max(PACE, len(payload) / RATE))
        finally:
            watchers[peer] -= 1
            if not watchers[peer]:
                del watchers[peer]
