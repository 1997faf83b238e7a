"""Snapshots from many donors at once, some of which die, freeze, lie or go on training."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import nodes
import psutil
import pytest
from donors import OUTER, RUN, STALL, DonorProcess, Joiner, JoinerProcess, Lineage, serve

from prime_p2p.outer.digest import PIECE
from prime_p2p.state.client import Lacking, StateClient
from prime_p2p.state.download import DONORS
from prime_p2p.state.messages import TransferError
from prime_p2p.state.piece_file import Contents, Copy, Growing
from prime_p2p.state.transfer import ServingLimits, StateServer

pytestmark = pytest.mark.timeout(240)

N = 5 * 2**20  # five pieces of the anchor and five of the momentum
PIECES = 10
SIZE = 8 * N
WHILE = 100.0  # seconds that a fetch may take, far above what it needs
RATE = 20.0  # MB/s of a donor that is to be still giving when something happens to it


@contextmanager
def donor_processes(folder: Path, count: int, rate: float = 0.0) -> Iterator[list[DonorProcess]]:
    started: list[DonorProcess] = []
    try:
        started.append(DonorProcess(folder / "donor-0", N, rate=rate))
        address = started[0].ready().address
        started += [DonorProcess(folder / f"donor-{number}", N, address, rate) for number in range(1, count)]
        for donor in started[1:]:
            donor.ready()
        yield started
    finally:
        for donor in started:
            donor.end()


def after_pieces(monkeypatch: pytest.MonkeyPatch, count: int, happen: Callable[[], None]) -> None:
    """Have something happen when a download has so many pieces."""
    accept, pieces = Growing.accept, 0

    def counted(file: Growing, index: int, data: memoryview, in_place: bool) -> None:
        nonlocal pieces
        accept(file, index, data, in_place)
        pieces += 1
        if pieces == count:
            happen()

    monkeypatch.setattr(Growing, "accept", counted)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("pieces", [1, 5, 9])
def test_a_donor_that_dies_or_freezes_costs_no_more_than_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int, number: signal.Signals
) -> None:
    with donor_processes(tmp_path, 2, RATE) as donors:
        after_pieces(monkeypatch, pieces, lambda: donors[1].signal(number))

        async def test(swarm: nodes.Swarm) -> None:
            node = await swarm.node("joiner", donors[0].address)
            joiner = await Joiner.on(node, tmp_path / "joiner", [donor.peer_id for donor in donors], stall=3.0)
            state = await asyncio.wait_for(joiner.fetch(donors[0].digest, N), WHILE)
            assert state.digest == donors[0].digest
            assert joiner.client.bytes_received < SIZE + 5 * PIECE

        nodes.run(test)


def test_all_donors_but_one_may_die(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with donor_processes(tmp_path, 4, RATE) as donors:

        def kill() -> None:
            for donor in donors[1:]:
                donor.signal(signal.SIGKILL)

        after_pieces(monkeypatch, 4, kill)

        async def test(swarm: nodes.Swarm) -> None:
            node = await swarm.node("joiner", donors[0].address)
            joiner = await Joiner.on(node, tmp_path / "joiner", [donor.peer_id for donor in donors], stall=3.0)
            state = await asyncio.wait_for(joiner.fetch(donors[0].digest, N), WHILE)
            assert state.digest == donors[0].digest

        nodes.run(test)


def test_a_killed_joiner_does_not_fetch_again_what_it_has(tmp_path: Path) -> None:
    with donor_processes(tmp_path, 1, RATE) as (donor,):
        killed = JoinerProcess(tmp_path / "joiner", donor, N)
        try:
            there = [killed.line() for _ in range(PIECES // 2)]
        finally:
            killed.end()
        assert all(there)

        async def test(swarm: nodes.Swarm) -> None:
            node = await swarm.node("joiner", donor.address)
            joiner = await Joiner.on(node, tmp_path / "joiner", [donor.peer_id])
            told: list[int] = []
            state = await asyncio.wait_for(joiner.fetch(donor.digest, N, advance=told.append), WHILE)
            assert state.digest == donor.digest
            assert joiner.client.bytes_received < (PIECES - len(there)) * PIECE + PIECE / 2
            assert told[0] >= (len(there) - 1) * PIECE  # what was here already
            assert sum(told) == 8 * N

        nodes.run(test)
        assert not list((tmp_path / "joiner").glob("*.download"))


class LyingFile(Copy):
    """One byte of every piece is a wrong one."""

    def read_at_once(self, buffer: memoryview, index: int) -> memoryview:
        piece = self.read_into(buffer, index)
        piece[len(piece) // 2] ^= 1
        return piece


def test_a_donor_that_gives_wrong_bytes_is_set_aside_and_costs_one_piece_at_a_time(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path / "journal", N)

    async def test(swarm: nodes.Swarm) -> None:
        liar, honest = await swarm.node("liar"), await swarm.node("honest")
        node = await swarm.node("joiner", await nodes.address(liar), await nodes.address(honest))
        # The honest one is slow enough for the liar to be asked, too.
        await serve(honest, lineage, tmp_path / "honest", ServingLimits(RATE))
        lying = (await serve(liar, lineage, tmp_path / "liar")).shelf
        state = lineage.state
        file = LyingFile.of(tmp_path, state, Contents(state.step, state.tokens, N, list(state.pieces)))
        assert all(file.take(index) for index in range(PIECES))
        lying.put(file)
        joiner = await Joiner.on(node, tmp_path / "joiner", [liar.peer_id, honest.peer_id])
        state = await asyncio.wait_for(joiner.fetch(lineage.state.digest, N), WHILE)
        assert state.digest == lineage.state.digest
        assert state.anchor.tobytes() == lineage.state.anchor.tobytes()
        assert joiner.standing.failures(liar.peer_id) >= 1
        assert joiner.standing.failures(honest.peer_id) == 0

    nodes.run(test)


def test_an_outer_step_in_the_middle_of_a_download_changes_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lineage = Lineage(tmp_path / "journal", N)
    wanted = lineage.state.digest
    after_pieces(monkeypatch, PIECES // 2, lineage.outer_step)

    async def test(swarm: nodes.Swarm) -> None:
        donor = await swarm.node("donor")
        node = await swarm.node("joiner", await nodes.address(donor))
        await serve(donor, lineage, tmp_path / "donor")
        joiner = await Joiner.on(node, tmp_path / "joiner", [donor.peer_id])
        state = await asyncio.wait_for(joiner.fetch(wanted, N), WHILE)
        assert (state.step, state.digest) == (0, wanted)
        assert lineage.state.step == 1
        entry, update, _ = await joiner.client.update(donor.peer_id, 0, wanted, N)
        assert state.apply(update, entry.tokens, OUTER) == lineage.state.digest

    nodes.run(test)


def test_those_who_come_later_get_the_snapshot_that_is_there(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path / "journal", N)

    async def test(swarm: nodes.Swarm) -> None:
        donor = await swarm.node("donor")
        server = await serve(donor, lineage, tmp_path / "donor")
        first = await server.shelf.fetch(lineage.state.digest)
        assert first is not None
        lineage.outer_step()
        node = await swarm.node("joiner", await nodes.address(donor))
        joiner = await Joiner.on(node, tmp_path / "joiner", [donor.peer_id])
        state = await asyncio.wait_for(joiner.fetch(lineage.state.digest, N), WHILE)
        assert state.step in (0, 1)
        for _ in range(lineage.journal.length):
            lineage.outer_step()
        assert first.digest not in await server.shelf.offered()  # no journal leads on from it any more
        with pytest.raises(Lacking):
            await joiner.client.contents(donor.peer_id, first.digest, N)

    nodes.run(test)


def test_ten_who_join_at_once_give_each_other_what_they_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lineage = Lineage(tmp_path / "journal", N)
    sent: dict[StateServer, int] = {}
    send = StateServer._send_parts

    async def counted(server: StateServer, stream: object, buffer: memoryview) -> None:
        await send(server, stream, buffer)  # type: ignore[arg-type]
        sent[server] = sent.get(server, 0) + len(buffer)

    monkeypatch.setattr(StateServer, "_send_parts", counted)

    async def test(swarm: nodes.Swarm) -> None:
        donors = [await swarm.node("donor-0")]
        address = await nodes.address(donors[0])
        donors.append(await swarm.node("donor-1", address))
        limits = ServingLimits(RATE, at_once=2)
        servers = [await serve(donor, lineage, tmp_path / donor.peer_id, limits) for donor in donors]
        there = [donor.peer_id for donor in donors]
        nodes_ = await asyncio.gather(*(swarm.node(f"joiner-{number}", address) for number in range(10)))
        joiners = [await Joiner.on(node, tmp_path / node.peer_id, there) for node in nodes_]
        there += [joiner.node.peer_id for joiner in joiners]
        for joiner in joiners:
            joiner.peers = [peer for peer in there if peer != joiner.node.peer_id]
        fetching = [joiner.fetch(lineage.state.digest, N) for joiner in joiners]
        states = await asyncio.wait_for(asyncio.gather(*fetching), WHILE)
        assert {state.digest for state in states} == {lineage.state.digest}
        of_donors = [sent[server] for server in servers]
        assert sum(of_donors) < 0.75 * len(joiners) * SIZE
        assert min(of_donors) > SIZE / 2  # the load is on both
        assert sum(sent.values()) < 2 * len(joiners) * SIZE

    nodes.run(test)


def test_those_who_have_nothing_for_us_do_not_keep_us_from_the_one_who_has(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path / "journal", N)
    state = lineage.state

    async def test(swarm: nodes.Swarm) -> None:
        donor = await swarm.node("donor")
        address = await nodes.address(donor)
        await serve(donor, lineage, tmp_path / "donor")
        contents = Contents(state.step, state.tokens, N, list(state.pieces))
        empty = await asyncio.gather(*(swarm.node(f"empty-{number}", address) for number in range(DONORS)))
        for node in empty:
            server = await serve(node, None, tmp_path / node.peer_id)
            server.shelf.put(Growing.at(tmp_path / f"{node.peer_id}.download", contents))
        node = await swarm.node("joiner", address)
        joiner = await Joiner.on(node, tmp_path / "joiner", [donor.peer_id])
        contents_of = StateClient.contents

        async def then_see_the_others(client: StateClient, *asked: Any) -> Contents:
            contents = await contents_of(client, *asked)
            joiner.peers = [donor.peer_id, *(node.peer_id for node in empty)]
            joiner.standing.fail(donor.peer_id, "in this test all others are asked before it")
            return contents

        with mock.patch.object(StateClient, "contents", then_see_the_others):
            fetched = await asyncio.wait_for(joiner.fetch(state.digest, N), WHILE)
        assert fetched.digest == state.digest

    nodes.run(test)


def test_a_download_waits_for_a_donor_that_serves_others(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path / "journal", N)

    async def test(swarm: nodes.Swarm) -> None:
        donor = await swarm.node("donor")
        await serve(donor, lineage, tmp_path / "donor", ServingLimits(at_once=1))
        first, second = [await swarm.node(name, await nodes.address(donor)) for name in ("first", "second")]
        client = StateClient(first, RUN, STALL)
        session = await client.session(donor.peer_id, lineage.state.digest, PIECES)
        joiner = await Joiner.on(second, tmp_path / "joiner", [donor.peer_id])
        fetching = asyncio.create_task(joiner.fetch(lineage.state.digest, N))

        async def told_to_wait() -> bool:
            return not joiner.standing.good(donor.peer_id)

        await nodes.until(told_to_wait)
        session.end()
        assert (await asyncio.wait_for(fetching, WHILE)).digest == lineage.state.digest

    nodes.run(test)


def test_a_download_that_nobody_goes_on_with_ends_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with donor_processes(tmp_path, 1, RATE) as (donor,):
        after_pieces(monkeypatch, 2, lambda: donor.signal(signal.SIGSTOP))

        async def test(swarm: nodes.Swarm) -> None:
            node = await swarm.node("joiner", donor.address)
            joiner = await Joiner.on(node, tmp_path / "joiner", [donor.peer_id], stall=1.0)
            with pytest.raises(TransferError, match="too long"):
                await asyncio.wait_for(joiner.fetch(donor.digest, N), WHILE)

        nodes.run(test)


def test_joining_again_and_again_leaves_nothing_behind(tmp_path: Path) -> None:
    n = 1000
    lineage = Lineage(tmp_path / "journal", n)

    async def test(swarm: nodes.Swarm) -> None:
        donor = await swarm.node("donor")
        node = await swarm.node("joiner", await nodes.address(donor))
        await serve(donor, lineage, tmp_path / "donor")
        joiner = await Joiner.on(node, tmp_path / "joiner", [donor.peer_id])

        async def join(times: int) -> None:
            for _ in range(times):
                await joiner.fetch(lineage.state.digest, n)
                lineage.outer_step()

        process = psutil.Process()
        await join(20)
        tasks, files = len(asyncio.all_tasks()), process.num_fds()
        await join(60)

        async def as_before() -> bool:
            return len(asyncio.all_tasks()) <= tasks + 2 and process.num_fds() <= files + 4

        await nodes.until(as_before)
        assert not list((tmp_path / "joiner").glob("*.download"))

    nodes.run(test)
