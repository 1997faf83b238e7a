"""The all-reduce between exchanges in one process, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prime_p2p.allreduce import plan as plans
from prime_p2p.allreduce.butterfly import (
    DATA,
    Contribution,
    Exchange,
    Hello,
    ReduceError,
    Setting,
    SpareChunks,
    Traffic,
)
from prime_p2p.allreduce.codec import BLOCK, BlockVector, blocks_of, dequantise, quantise
from prime_p2p.allreduce.partition import split
from prime_p2p.allreduce.plan import Plan
from prime_p2p.network.streams import Stream, StreamLost, stream_over

STALL = 20.0  # far above what these machines need; tests of stalls take their own
Vector = np.ndarray[Any, np.dtype[np.float32]]


class Loopback:
    """The exchanges of one group in one process, joined by socket pairs."""

    def __init__(
        self,
        vectors: Sequence[Vector],
        weights: Sequence[int],
        bandwidths: Sequence[float],
        stall: float = STALL,
        bits: int = 8,
        spare: SpareChunks | None = None,
    ):
        self.peers = [f"peer-{index}" for index in range(len(vectors))]
        n = len(vectors[0])
        parts = split(blocks_of(n), bandwidths)
        self.executor = ThreadPoolExecutor(1)
        self.traffic = {peer: Traffic() for peer in self.peers}
        self.updates = {peer: BlockVector.empty(n, bits) for peer in self.peers}
        self.exchanges: dict[str, Exchange] = {}
        self.streams: list[Stream] = []
        for peer, vector in zip(self.peers, vectors, strict=True):
            mine = BlockVector.empty(n, bits)
            quantise(vector, mine)
            plan = Plan(b"g" * 32, self.peers, list(weights), parts, peer)
            setting = Setting(stall, self.executor, self.traffic[peer], spare or SpareChunks())
            self.exchanges[peer] = Exchange(plan, mine, self.updates[peer], setting)

    def opener(self, sender: str) -> Callable[[str], Coroutine[Any, Any, Stream]]:
        async def open_stream(receiver: str) -> Stream:
            here, there = socket.socketpair()
            outgoing = await stream_over(here, receiver, DATA)
            incoming = await stream_over(there, sender, DATA)
            self.streams += [outgoing, incoming]
            asyncio.get_running_loop().create_task(self.accept(receiver, incoming))
            return outgoing

        return open_stream

    async def accept(self, receiver: str, incoming: Stream) -> None:
        hello = await incoming.receive(stall=STALL)
        assert isinstance(hello, Hello)
        assert self.exchanges[receiver].accept(incoming, hello.lane)

    async def run(self, peers: Sequence[str] | None = None) -> dict[str, bytes | BaseException]:
        chosen = self.peers if peers is None else peers
        results = await asyncio.gather(
            *(self.exchanges[peer].run(self.opener(peer)) for peer in chosen), return_exceptions=True
        )
        for stream in self.streams:
            stream.abort()
        self.executor.shutdown()
        return dict(zip(chosen, results, strict=True))


def reduce(
    vectors: Sequence[Vector], weights: Sequence[int], bandwidths: Sequence[float], bits: int = 8
) -> tuple[Loopback, Vector]:
    """Run a group and return it with the update all of its peers hold, after checking that it is the same for all."""

    async def main() -> Loopback:
        loopback = Loopback(vectors, weights, bandwidths, bits=bits)
        results = await loopback.run()
        assert len(set(results.values())) == 1, results
        return loopback

    loopback = asyncio.run(main())
    first = loopback.updates[loopback.peers[0]]
    for update in loopback.updates.values():
        assert update.values.tobytes() == first.values.tobytes()
        assert update.scales.tobytes() == first.scales.tobytes()
    out = np.empty(first.n, np.float32)
    dequantise(first, out)
    return loopback, out


def assert_is_the_mean(out: Vector, vectors: Sequence[Vector], weights: Sequence[int], bits: int = 8) -> None:
    """Within half a level of every contributor's block and half a level of the mean's own."""
    exact = np.average(np.asarray(vectors, np.float64), axis=0, weights=weights)
    blocks = blocks_of(len(out))
    padded = np.zeros((len(vectors), blocks * BLOCK))
    padded[:, : len(out)] = vectors
    absmax = np.abs(padded).reshape(len(vectors), blocks, BLOCK).max(axis=2)
    per_block = np.average(absmax, axis=0, weights=weights) / {8: 127, 4: 7}[bits] * 1.005 + 1e-30
    assert np.all(np.abs(out - exact) <= np.repeat(per_block, BLOCK)[: len(out)])


def random_vectors(peers: int, n: int, seed: int) -> list[Vector]:
    random = np.random.default_rng(seed)
    return [
        random.standard_t(3, n).astype(np.float32) * np.float32(10.0 ** random.integers(-4, 2)) for _ in range(peers)
    ]


@pytest.mark.parametrize("bits", [8, 4])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    data=st.data(),
    peers=st.integers(1, 9),
    n=st.sampled_from([0, 1, 1023, 1024, 1025, 5000, 600_000, 1_100_001]) | st.integers(0, 20_000),
    seed=st.integers(0, 2**32),
)
def test_the_update_is_the_weighted_mean_and_the_same_bytes_on_every_peer(
    bits: int, data: st.DataObject, peers: int, n: int, seed: int
) -> None:
    weights = data.draw(st.lists(st.integers(0, 10**12), min_size=peers, max_size=peers).filter(any))
    bandwidths = data.draw(st.lists(st.floats(0, 1000), min_size=peers, max_size=peers))
    vectors = random_vectors(peers, n, seed)
    _, out = reduce(vectors, weights, bandwidths, bits)
    assert_is_the_mean(out, vectors, weights, bits)


@pytest.mark.parametrize("peers", [2, 5])
def test_ten_million_elements_are_averaged_exactly(peers: int) -> None:
    vectors = random_vectors(peers, 10_000_000, seed=peers)
    weights = list(range(1, peers + 1))
    _, out = reduce(vectors, weights, [1.0] * peers)
    assert_is_the_mean(out, vectors, weights)


@pytest.mark.parametrize(
    ("peers", "bits", "most"), [(2, 8, 1.01), (4, 8, 1.01), (9, 8, 1.01), (2, 4, 0.51), (9, 4, 0.51)]
)
def test_a_peer_sends_no_more_than_the_butterfly_needs_and_one_percent(peers: int, bits: int, most: float) -> None:
    n = 3_000_000
    loopback, _ = reduce(random_vectors(peers, n, seed=1), [1] * peers, [1.0] * peers, bits)
    for traffic in loopback.traffic.values():
        assert 0 < traffic.sent <= 2 * (peers - 1) / peers * n * most


def test_a_peer_alone_gets_its_own_bytes_back() -> None:
    (vector,) = random_vectors(1, 5000, seed=3)
    mine = BlockVector.empty(5000)
    quantise(vector, mine)
    loopback, _ = reduce([vector], [7], [1.0])
    update = loopback.updates["peer-0"]
    assert update.values.tobytes() == mine.values.tobytes()
    assert update.scales.tobytes() == mine.scales.tobytes()
    assert loopback.traffic["peer-0"] == Traffic(0, 0)


def test_a_peer_that_has_not_trained_sends_only_what_it_reduced_and_does_not_count() -> None:
    vectors = random_vectors(3, 600_000, seed=4)
    loopback, out = reduce(vectors, [5, 0, 5], [1.0, 1.0, 1.0])
    assert_is_the_mean(out, vectors, [5, 0, 5])
    assert loopback.traffic["peer-1"].sent < 0.6 * loopback.traffic["peer-0"].sent


def test_peers_with_the_same_vector_get_it_back_to_one_rounding() -> None:
    (vector,) = random_vectors(1, 50_000, seed=5)
    _, alone = reduce([vector], [3], [1.0])
    _, together = reduce([vector] * 4, [3] * 4, [1.0] * 4)
    np.testing.assert_allclose(together, alone, rtol=1e-6, atol=0)


def test_a_peer_that_never_comes_is_blamed_by_all_others() -> None:
    async def main() -> dict[str, bytes | BaseException]:
        loopback = Loopback(random_vectors(3, 5000, seed=6), [1, 1, 1], [1.0, 1.0, 1.0], stall=0.3)

        async def refuse(peer: str) -> Stream:
            raise StreamLost(peer, "nobody there")

        real = loopback.opener
        loopback.opener = lambda sender: lambda peer: refuse(peer) if peer == "peer-2" else real(sender)(peer)  # type: ignore[method-assign]
        return await loopback.run(["peer-0", "peer-1"])

    for error in asyncio.run(main()).values():
        assert isinstance(error, ReduceError)
        assert error.blamed == {"peer-2"}


def test_a_peer_that_stops_in_the_middle_is_blamed() -> None:
    async def main() -> BaseException | bytes:
        loopback = Loopback(random_vectors(2, 3_000_000, seed=7), [1, 1], [1.0, 1.0], stall=0.3)
        here, there = socket.socketpair()
        frozen = await stream_over(there, "peer-0", DATA)
        incoming = await stream_over(here, "peer-1", DATA)

        async def open_stream(peer: str) -> Stream:
            return incoming

        loopback.exchanges["peer-0"].accept(incoming, 0)
        chunk = loopback.exchanges["peer-0"]._mine.slice(0, 512)
        sending = frozen.send(Contribution(index=0), *chunk.buffers(), stall=STALL)
        running = loopback.exchanges["peer-0"].run(open_stream)
        result = (await asyncio.gather(running, sending, return_exceptions=True))[0]
        frozen.abort()
        loopback.executor.shutdown()
        return result

    error = asyncio.run(main())
    assert isinstance(error, ReduceError)
    assert error.blamed == {"peer-1"}


@pytest.mark.parametrize(
    ("wrong", "bits"),
    [
        *((wrong, bits) for wrong in ("not finite", "out of order", "short", "other codec") for bits in (8, 4)),
        ("no level", 4),
    ],
)
def test_a_chunk_that_should_not_be_there_is_blamed_on_its_sender(wrong: str, bits: int) -> None:
    async def main() -> BaseException | bytes:
        loopback = Loopback(random_vectors(2, 5000, seed=8), [1, 1], [1.0, 1.0], bits=bits)
        here, there = socket.socketpair()
        hostile = await stream_over(there, "peer-0", DATA)
        incoming = await stream_over(here, "peer-1", DATA)

        async def open_stream(peer: str) -> Stream:
            return incoming

        exchange = loopback.exchanges["peer-0"]
        exchange.accept(incoming, 0)
        blocks = exchange.plan.chunks("peer-0")[0]
        chunk = exchange._mine.slice(*blocks)
        if wrong == "not finite":
            chunk = BlockVector(chunk.n, chunk.values.copy(), np.full_like(chunk.scales, np.nan), bits)
        elif wrong == "no level":
            chunk = BlockVector(chunk.n, chunk.values & 0xF0, chunk.scales, bits)
        elif wrong == "other codec":
            chunk = BlockVector.empty(chunk.n, 12 - bits)
        elif wrong == "short":
            chunk = chunk.slice(0, chunk.blocks - 1)
        index = 1 if wrong == "out of order" else 0
        sending = hostile.send(Contribution(index=index), *chunk.buffers(), stall=STALL)
        result = (await asyncio.gather(exchange.run(open_stream), sending, return_exceptions=True))[0]
        hostile.abort()
        loopback.executor.shutdown()
        return result

    error = asyncio.run(main())
    assert isinstance(error, ReduceError)
    assert error.blamed == {"peer-1"}


@pytest.mark.parametrize("bits", [8, 4])
def test_on_several_lanes_all_peers_get_the_same_mean_of_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, bits: int
) -> None:
    vectors, weights = random_vectors(3, 150 * BLOCK + 7, seed=5), [3, 0, 5]
    _, on_one_lane = reduce(vectors, weights, [1.0, 2.0, 1.5], bits)
    monkeypatch.setattr(plans, "CHUNK_BLOCKS", 2)
    loopback, on_many = reduce(vectors, weights, [1.0, 2.0, 1.5], bits)
    first = loopback.exchanges["peer-0"].plan
    assert first.lanes("peer-0", "peer-2") > 1
    assert len(loopback.streams) == 2 * sum(
        first.lanes(sender, receiver) for sender in loopback.peers for receiver in loopback.peers if sender != receiver
    )
    assert np.array_equal(on_one_lane, on_many)
    assert_is_the_mean(on_many, [vectors[0], vectors[2]], [3, 5], bits)


def lose_the_lane_of(exchange: Exchange, index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the stream end on which the contribution to this chunk is due, before it comes."""
    original = exchange._expect

    async def until_it_is_due(stream: Stream, wanted: Any, *others: Any) -> None:
        if isinstance(wanted, Contribution) and wanted.index == index:
            stream.abort()
        await original(stream, wanted, *others)

    monkeypatch.setattr(exchange, "_expect", until_it_is_due)


def test_one_lane_that_ends_blames_its_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "CHUNK_BLOCKS", 2)

    async def main() -> dict[str, bytes | BaseException]:
        loopback = Loopback(random_vectors(2, 100 * BLOCK, seed=6), [1, 1], [1.0, 1.0])
        lose_the_lane_of(loopback.exchanges["peer-0"], 5, monkeypatch)
        return await loopback.run()

    results = asyncio.run(main())
    error = results["peer-0"]
    assert isinstance(error, ReduceError)
    assert error.blamed == {"peer-1"}


def test_memory_of_an_all_reduce_that_failed_serves_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "CHUNK_BLOCKS", 2)
    vectors, spare = random_vectors(2, 60 * BLOCK, seed=7), SpareChunks()

    async def failing() -> None:
        loopback = Loopback(vectors, [1, 1], [1.0, 1.0], spare=spare)
        lose_the_lane_of(loopback.exchanges["peer-1"], 12, monkeypatch)
        assert any(isinstance(result, ReduceError) for result in (await loopback.run()).values())

    async def working() -> Loopback:
        loopback = Loopback(vectors, [1, 1], [1.0, 1.0], spare=spare)
        assert len(set((await loopback.run()).values())) == 1
        return loopback

    asyncio.run(failing())
    found = np.empty(60 * BLOCK, np.float32)
    dequantise(asyncio.run(working()).updates["peer-0"], found)
    assert_is_the_mean(found, vectors, [1, 1])


def test_who_owns_the_whole_vector_never_keeps_more_than_one_of_it_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of four contributors is held back until the others have sent all they may."""
    monkeypatch.setattr(plans, "CHUNK_BLOCKS", 2)
    vectors = random_vectors(5, 60 * BLOCK, seed=8)

    class Counting(SpareChunks):
        out = most = 0

        def take(self, n: int, bits: int) -> BlockVector:
            self.out += 1
            self.most = max(self.most, self.out)
            return super().take(n, bits)

        def give_back(self, chunk: BlockVector) -> None:
            self.out -= 1
            super().give_back(chunk)

    async def main() -> int:
        spare = Counting()
        loopback = Loopback(vectors, [1] * 5, [1.0, 0.0, 0.0, 0.0, 0.0], spare=spare)
        owner = loopback.exchanges["peer-0"]
        original = owner._expect
        stood = 0

        async def the_last_one_waits(stream: Stream, wanted: Any, *others: Any) -> None:
            nonlocal stood
            while stream.peer_id == "peer-4" and stood < 200:  # until nothing else moves any more
                before = spare.out
                await asyncio.sleep(0.002)
                stood = stood + 1 if spare.out == before else 0
            await original(stream, wanted, *others)

        monkeypatch.setattr(owner, "_expect", the_last_one_waits)
        assert len(set((await loopback.run()).values())) == 1
        return spare.most

    assert 8 < asyncio.run(main()) <= 30 + 8


def test_a_lane_may_be_silent_while_another_one_of_its_peer_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "CHUNK_BLOCKS", 2)
    stall = 0.8

    async def main() -> dict[str, bytes | BaseException]:
        loopback = Loopback(random_vectors(2, 60 * BLOCK, seed=9), [1, 1], [1.0, 1.0], stall=stall)
        assert loopback.exchanges["peer-0"].plan.lanes("peer-0", "peer-1") > 1
        send = Stream.send

        async def slowly(stream: Stream, message: Any, *buffers: Any, stall: float) -> None:
            if isinstance(message, Contribution) and stream.peer_id == "peer-1":
                # The first lane says nothing for longer than the stall, while the others go on.
                await asyncio.sleep(1.5 * 0.8 if message.index == 0 else 0.3)
            await send(stream, message, *buffers, stall=stall)

        monkeypatch.setattr(Stream, "send", slowly)
        return await loopback.run()

    results = asyncio.run(main())
    assert len(set(results.values())) == 1, results
