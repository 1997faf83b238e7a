"""State between two real nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop

from prime_p2p.allreduce.codec import BlockVector, quantise
from prime_p2p.network.node import Node, NodeConfig
from prime_p2p.network.streams import Stream, StreamError
from prime_p2p.outer.journal import Journal, JournalEntry
from prime_p2p.outer.nesterov import OuterOptimizer
from prime_p2p.outer.state import OuterState
from prime_p2p.state.transfer import STATE, Piece, Snapshot, Source, StateClient, StateServer, TransferError, protocol

N = 1_500_000  # more than one piece, and no multiple of it
STALL = 20.0
OUTER = OuterOptimizer()


class Donor:
    """A state that outer steps are made on, with its journal."""

    def __init__(self, folder: Path, length: int = 16) -> None:
        self.random = np.random.default_rng(0)
        self.state = OuterState.initial(self.random.standard_normal(N, np.float32))
        self.journal = Journal(folder, length)

    def outer_step(self) -> None:
        update = BlockVector.empty(N)
        quantise(self.random.standard_normal(N, np.float32) * np.float32(0.01), update)
        step, before = self.state.step, self.state.digest
        after = self.state.apply(update, 100, OUTER)
        self.journal.append(JournalEntry(step, before, after, 100, N), update)


@asynccontextmanager
async def two_nodes(folder: Path) -> AsyncIterator[tuple[Node, Node]]:
    donor = await Node.create(NodeConfig(folder / "donor.key"))
    try:
        joiner = await Node.create(NodeConfig(folder / "joiner.key", bootstrap=tuple(await donor.addresses())))
        try:
            yield donor, joiner
        finally:
            await joiner.close()
    finally:
        await donor.close()


def between(folder: Path, donor: Donor, use: Callable[[StateClient, str], Awaitable[Any]]) -> Any:
    """``use`` a client of a node that serves the donor's state."""

    async def main() -> Any:
        async with two_nodes(folder) as (serving, asking):
            source = Source(lambda: donor.state, donor.journal, {"model": {"parameters": N}})
            await StateServer(serving, "run", source, STALL).serve()
            return await use(StateClient(asking, "run", STALL), serving.peer_id)

    return uvloop.run(asyncio.wait_for(main(), 100))


def test_a_snapshot_is_the_donors_state_byte_for_byte(tmp_path: Path) -> None:
    donor = Donor(tmp_path / "journal")
    donor.outer_step()
    state: OuterState = between(tmp_path, donor, lambda client, peer: client.snapshot(peer, N))
    assert state.digest == donor.state.digest
    assert state.anchor.tobytes() == donor.state.anchor.tobytes()
    assert state.momentum.tobytes() == donor.state.momentum.tobytes()
    assert (state.step, state.tokens) == (1, 100)


def test_a_snapshot_stays_consistent_while_the_donor_makes_outer_steps(tmp_path: Path) -> None:
    donor = Donor(tmp_path / "journal")

    async def use(client: StateClient, peer: str) -> OuterState:
        fetching = asyncio.ensure_future(client.snapshot(peer, N))
        while not fetching.done():
            await asyncio.to_thread(donor.outer_step)
        return fetching.result()

    state: OuterState = between(tmp_path, donor, use)
    assert donor.state.step > state.step or donor.state.digest == state.digest


def test_missed_updates_lead_to_the_donors_state(tmp_path: Path) -> None:
    donor = Donor(tmp_path / "journal")
    mine = OuterState.initial(donor.state.anchor)
    journal = Journal(tmp_path / "mine")
    for _ in range(3):
        donor.outer_step()
    entries = between(tmp_path, donor, lambda client, peer: client.updates(peer, mine, journal))
    for entry in entries:
        assert mine.apply(journal.read(entry.step_before)[1], entry.tokens, OUTER) == entry.digest_after
    assert mine.digest == donor.state.digest


def test_there_are_no_updates_from_a_state_that_the_journal_does_not_lead_from(tmp_path: Path) -> None:
    donor = Donor(tmp_path / "journal", length=2)
    mine = OuterState.initial(donor.state.anchor)
    stranger = OuterState.initial(donor.state.anchor + 1)
    for _ in range(3):
        donor.outer_step()

    async def use(client: StateClient, peer: str) -> list[list[JournalEntry]]:
        return [await client.updates(peer, state, Journal(tmp_path / "mine")) for state in (mine, stranger)]

    assert between(tmp_path, donor, use) == [[], []]


def test_the_description_of_a_run_is_what_the_donor_says(tmp_path: Path) -> None:
    donor = Donor(tmp_path / "journal")
    assert between(tmp_path, donor, lambda client, peer: client.description(peer)) == {"model": {"parameters": N}}


def test_a_state_of_another_size_is_refused(tmp_path: Path) -> None:
    donor = Donor(tmp_path / "journal")
    with pytest.raises(TransferError, match=f"{N} parameters"):
        between(tmp_path, donor, lambda client, peer: client.snapshot(peer, N + 1))


def test_a_peer_without_a_state_gives_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_nodes(tmp_path) as (serving, asking):
            source = Source(lambda: None, Journal(tmp_path / "journal"), {})
            await StateServer(serving, "run", source, STALL).serve()
            with pytest.raises(StreamError):
                await StateClient(asking, "run", STALL).snapshot(serving.peer_id, N)

    uvloop.run(asyncio.wait_for(main(), 100))


def test_a_snapshot_with_a_wrong_byte_is_found_out(tmp_path: Path) -> None:
    donor = Donor(tmp_path / "journal")

    async def lie(stream: Stream) -> None:
        await stream.receive(stall=STALL)
        head = Snapshot(step=0, tokens=0, n=N)
        await stream.send(head, b"".join(donor.state.pieces), stall=STALL)
        anchor = donor.state.anchor.copy()
        anchor[N // 2] += 1
        for array in (anchor, donor.state.momentum):
            data = array.tobytes()
            for start in range(0, len(data), Piece.max_payload):
                await stream.send(Piece(), data[start : start + Piece.max_payload], stall=STALL)

    async def main() -> None:
        async with two_nodes(tmp_path) as (serving, asking):
            await serving.serve(protocol("run"), STATE, lie)
            with pytest.raises(TransferError, match="not those it named"):
                await StateClient(asking, "run", STALL).snapshot(serving.peer_id, N)

    uvloop.run(asyncio.wait_for(main(), 100))
