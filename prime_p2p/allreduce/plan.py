"""The plan of one all-reduce: who reduces which part of the vector, in which chunks, and on how many streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CHUNK_BLOCKS = 512
"""Blocks in a chunk: half a megabyte, so that a part of a small model is one chunk and framing costs nothing."""

STREAMS = 9
"""Streams from one peer to all others in which much is sent. libp2p lets 256 kB of a stream be under way until it has
found out that more would be better, which it does not while the queues of slow links are what makes the way long. A
link is full only if as much is under way as waits in all the queues."""

UNDER_WAY = 2.1
"""Mbit of one stream that may be under way."""

AHEAD = 1.0
"""Seconds that a link may take for all that is, so that signs of life, which come behind, are not late."""

MOST_LANES = 8
"""Streams from one peer to another one, at most."""

CHUNKS_OF_A_LANE = 4
"""Chunks that make another stream worth opening."""


@dataclass(frozen=True)
class Plan:
    """Who reduces what: the same on every peer of the group but for ``me``.

    ``part_blocks[i]`` blocks belong to ``peer_ids[i]``, in order; ``weights`` are the integers the mean is taken with.
    """

    group_id: bytes
    peer_ids: Sequence[str]
    weights: Sequence[int]
    part_blocks: Sequence[int]
    me: str
    rates: Sequence[float] = ()  # Mbit/s of each peer's link, where they are known

    def chunks(self, peer_id: str) -> list[tuple[int, int]]:
        """The chunks of a peer's part as (first block, last block + 1) of the whole vector."""
        owner = self.peer_ids.index(peer_id)
        start = sum(self.part_blocks[:owner])
        stop = start + self.part_blocks[owner]
        return [(block, min(block + CHUNK_BLOCKS, stop)) for block in range(start, stop, CHUNK_BLOCKS)]

    @property
    def others(self) -> list[str]:
        return [peer for peer in self.peer_ids if peer != self.me]

    @property
    def contributors(self) -> list[str]:
        """The peers that have trained, in the order of the group. The others send nothing and are not in the mean."""
        return [peer for peer, weight in zip(self.peer_ids, self.weights, strict=True) if weight > 0]

    def coefficient(self, peer_id: str) -> float:
        return self.weights[self.peer_ids.index(peer_id)] / sum(self.weights)

    def lanes(self, sender: str, receiver: str) -> int:
        """How many streams lead from one peer to another one."""
        given = len(self.chunks(receiver)) if sender in self.contributors else 0
        chunks = given + len(self.chunks(sender))
        others = max(1, len(self.peer_ids) - 1)
        lanes = min(MOST_LANES, -(-STREAMS // others), chunks // CHUNKS_OF_A_LANE)
        if self.rates:
            rate = min(self.rates[self.peer_ids.index(peer)] for peer in (sender, receiver))
            lanes = min(lanes, int(rate * AHEAD / UNDER_WAY / others))
        return max(1, lanes)

    def count_chunks(self) -> int:
        """Of the whole vector."""
        return sum(len(self.chunks(peer)) for peer in self.peer_ids)
