"""State between two real nodes: what is asked and what is answered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import nodes
import numpy as np
import pytest
from blake3 import blake3
from donors import OUTER, RUN, STALL, Joiner, Lineage, serve

from prime_p2p.network.streams import Stream
from prime_p2p.outer.digest import PIECE
from prime_p2p.outer.state import OuterState
from prime_p2p.state.client import Lacking, StateClient
from prime_p2p.state.messages import STATE, AskHave, AskUpdate, Busy, Hashes, Have, TransferError, WrongBytes, protocol
from prime_p2p.state.piece_file import Contents, Copy
from prime_p2p.state.transfer import AT_ONCE_TO_A_PEER, IDLE_STALLS, ServingLimits

N = 1_500_000  # more than one piece, and no multiple of it


def between(folder: Path, lineage: Lineage | None, use: Callable[[Joiner, str], Awaitable[Any]]) -> Any:
    """``use`` a joiner that knows one node, which serves the lineage."""
    result: Any = None

    async def main(swarm: nodes.Swarm) -> None:
        nonlocal result
        serving = await swarm.node("donor")
        asking = await swarm.node("joiner", await nodes.address(serving))
        await serve(serving, lineage, folder / "donor")
        joiner = await Joiner.on(asking, folder / "joiner", [serving.peer_id])
        result = await asyncio.wait_for(use(joiner, serving.peer_id), 100)

    nodes.run(main)
    return result


def test_a_snapshot_is_the_donors_state_byte_for_byte(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path / "journal", N)
    lineage.outer_step()
    state: OuterState = between(tmp_path, lineage, lambda joiner, peer: joiner.fetch(lineage.state.digest, N))
    assert state.digest == lineage.state.digest
    assert state.anchor.tobytes() == lineage.state.anchor.tobytes()
    assert state.momentum.tobytes() == lineage.state.momentum.tobytes()
    assert (state.step, state.tokens) == (1, 100)
    assert not list((tmp_path / "joiner").glob("*.download"))


def test_a_donor_that_gives_slowly_is_not_silent_for_too_long(tmp_path: Path) -> None:
    """A piece takes it longer than the time after which it lets go of a joiner that asks nothing."""
    lineage = Lineage(tmp_path / "journal", N)

    async def main(swarm: nodes.Swarm) -> None:
        slow = await swarm.node("slow")
        node = await swarm.node("joiner", await nodes.address(slow))
        stall = 0.2
        rate = PIECE / 1e6 / (2 * IDLE_STALLS * stall)  # MB/s
        await serve(slow, lineage, tmp_path / "slow", ServingLimits(rate), stall=stall)
        joiner = await Joiner.on(node, tmp_path / "joiner", [slow.peer_id])
        state = await asyncio.wait_for(joiner.fetch(lineage.state.digest, N), 100)
        assert state.digest == lineage.state.digest
        assert joiner.standing.failures(slow.peer_id) == 0

    nodes.run(main)


def test_a_snapshot_of_a_state_that_has_gone_by_leads_to_the_present_one(tmp_path: Path) -> None:
    """Outer steps go by all the time; whatever snapshot came of it, the journal leads on from it."""
    lineage = Lineage(tmp_path / "journal", N)

    async def use(joiner: Joiner, peer: str) -> OuterState:
        stop = threading.Event()

        def train() -> None:
            while not stop.wait(0.05):
                lineage.outer_step()

        training = asyncio.ensure_future(asyncio.to_thread(train))
        state: OuterState | None = None
        try:
            while state is None:
                try:
                    state = await joiner.fetch(lineage.state.digest, N)
                except TransferError:  # the state moved on before its snapshot was written
                    continue
        finally:
            stop.set()
            await training
        while state.digest != lineage.state.digest:
            entry, update, _ = await joiner.client.update(peer, state.step, state.digest, N)
            assert state.apply(update, entry.tokens, OUTER) == entry.digest_after
        return state

    state: OuterState = between(tmp_path, lineage, use)
    assert state.anchor.tobytes() == lineage.state.anchor.tobytes()


def test_missed_updates_lead_to_the_donors_state(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path / "journal", N)
    mine = OuterState.initial(lineage.state.anchor)
    for _ in range(3):
        lineage.outer_step()

    async def use(joiner: Joiner, peer: str) -> list[int]:
        ahead = []
        for _ in range(3):
            entry, update, still = await joiner.client.update(peer, mine.step, mine.digest, N)
            ahead.append(still)
            assert mine.apply(update, entry.tokens, OUTER) == entry.digest_after
        with pytest.raises(Lacking):
            await joiner.client.update(peer, mine.step, mine.digest, N)
        return ahead

    assert between(tmp_path, lineage, use) == [3, 2, 1]
    assert mine.digest == lineage.state.digest


def test_there_are_no_updates_from_a_state_that_the_journal_does_not_lead_from(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path / "journal", N, length=2)
    mine = OuterState.initial(lineage.state.anchor)
    stranger = OuterState.initial(lineage.state.anchor + 1)
    for _ in range(3):
        lineage.outer_step()

    async def use(joiner: Joiner, peer: str) -> None:
        for state in (mine, stranger):
            with pytest.raises(Lacking):
                await joiner.client.update(peer, state.step, state.digest, N)

    between(tmp_path, lineage, use)


def test_the_description_of_a_run_is_what_the_donor_says(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path / "journal", N)
    said = between(tmp_path, lineage, lambda joiner, peer: joiner.client.description(peer))
    assert said == {"model": {"parameters": N}}


def test_a_state_of_another_size_is_refused(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path / "journal", N)

    async def use(joiner: Joiner, peer: str) -> None:
        with pytest.raises(WrongBytes, match=f"{N} parameters"):
            await joiner.client.contents(peer, lineage.state.digest, N + 1)

    between(tmp_path, lineage, use)


def test_a_peer_without_a_state_gives_none(tmp_path: Path) -> None:
    async def use(joiner: Joiner, peer: str) -> None:
        with pytest.raises(TransferError):
            await joiner.fetch(bytes(32), N)
        with pytest.raises(Lacking):
            await joiner.client.contents(peer, bytes(32), N)

    between(tmp_path, None, use)


def test_a_list_of_pieces_that_is_not_the_states_is_found_out_before_any_piece(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path / "journal", N)

    async def lie(stream: Stream) -> None:
        await stream.receive(stall=STALL)
        hashes = [bytes(32), *lineage.state.pieces[1:]]
        await stream.send(Hashes(step=0, tokens=0, n=N), b"".join(hashes), stall=STALL)

    async def main(swarm: nodes.Swarm) -> None:
        serving = await swarm.node("donor")
        asking = await swarm.node("joiner", await nodes.address(serving))
        await serving.serve(protocol(RUN), STATE, lie)
        with pytest.raises(WrongBytes, match="list of pieces"):
            await StateClient(asking, RUN, STALL).contents(serving.peer_id, lineage.state.digest, N)

    nodes.run(main)


@pytest.mark.parametrize(("at_once", "of_one_peer"), [(1, 1), (8, AT_ONCE_TO_A_PEER)])
def test_a_donor_serves_no_more_at_a_time_than_it_is_told_to(tmp_path: Path, at_once: int, of_one_peer: int) -> None:
    lineage = Lineage(tmp_path / "journal", N)

    async def main(swarm: nodes.Swarm) -> None:
        serving = await swarm.node("donor")
        asking = await swarm.node("joiner", await nodes.address(serving))
        await serve(serving, lineage, tmp_path / "donor", ServingLimits(at_once=at_once))
        client = StateClient(asking, RUN, STALL)
        sessions = [await client.session(serving.peer_id, lineage.state.digest, 4) for _ in range(of_one_peer)]
        assert all(session.whole for session in sessions)
        for question in (AskHave(digest=lineage.state.digest), AskUpdate(step=0, digest=lineage.state.digest)):
            stream = await asking.open(serving.peer_id, protocol(RUN), STATE, STALL)
            await stream.send(question, stall=STALL)
            assert isinstance(await stream.receive(stall=STALL), Busy)
            stream.abort()
        for session in sessions:
            session.end()

        async def served() -> bool:
            try:
                (await client.session(serving.peer_id, lineage.state.digest, 4)).end()
            except Lacking:
                return False
            return True

        await nodes.until(served)

    nodes.run(main)


def test_a_snapshot_is_given_up_when_an_outer_step_comes_before_all_of_it_is_written(tmp_path: Path) -> None:
    """Outer steps are let in between two pieces, and no file has bits of two states."""
    lineage = Lineage(tmp_path / "journal", N)

    (tmp_path / "donor").mkdir()
    state = lineage.state
    contents = Contents(state.step, state.tokens, N, list(state.pieces))
    copy = Copy.of(tmp_path / "donor", state, contents)
    assert copy.take(0)
    assert copy.given == {0, 1, 2, 3}
    lineage.outer_step()
    assert not copy.take(1)
    assert copy.given == {0}
    assert blake3(copy.read_into(memoryview(bytearray(PIECE)), 0)).digest() == contents.hashes[0]


def test_have_says_which_pieces_a_peer_has(tmp_path: Path) -> None:
    async def tell(stream: Stream) -> None:
        await stream.receive(stall=STALL)
        bits = np.zeros(11, np.bool_)
        bits[[0, 3, 10]] = True
        await stream.send(Have(), np.packbits(bits).tobytes(), stall=STALL)
        await stream.receive(stall=STALL)
        await stream.send(Have(), bytes(3), stall=STALL)

    async def main(swarm: nodes.Swarm) -> None:
        serving = await swarm.node("donor")
        asking = await swarm.node("joiner", await nodes.address(serving))
        await serving.serve(protocol(RUN), STATE, tell)
        session = await StateClient(asking, RUN, STALL).session(serving.peer_id, bytes(32), 11)
        assert session.have == {0, 3, 10}
        with pytest.raises(WrongBytes, match="3 bytes, for 11 pieces"):
            await session.refresh()
        session.end()

    nodes.run(main)
