"""Following the others over real nodes: updates that were missed, liars, and when it takes a snapshot."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from donors import OUTER, RUN, Joiner, serve
from donors import Lineage as Donor

from prime_p2p.allreduce.codec import Float32
from prime_p2p.long_work import Watch, unwatched
from prime_p2p.network.loop import LoopThread
from prime_p2p.network.node import Node, NodeConfig
from prime_p2p.outer.journal import Journal
from prime_p2p.outer.state import OuterState
from prime_p2p.outer.terms import Unchanging
from prime_p2p.state import follow
from prime_p2p.state.follow import CaughtUp, Follower, Means
from prime_p2p.swarm.swarm import Lineage, Swarm

N = 3000


class Place:
    """The part of a swarm that a follower uses, on nodes of this process."""

    run = RUN
    leaving = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loop = LoopThread()
        self.nodes: list[Node] = []

    def transfer(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run(coroutine, 60)

    def node(self, name: str) -> Node:
        bootstrap = tuple(self.transfer(self.nodes[0].addresses())) if self.nodes else ()
        node: Node = self.transfer(Node.create(NodeConfig(self.folder / f"{name}.key", bootstrap)))
        self.nodes.append(node)
        return node

    def donor(self, name: str, donor: Donor) -> str:
        node = self.node(name)
        self.transfer(serve(node, donor, self.folder / name))
        return node.peer_id

    def follower(self, peers: list[str], length: int = 16, watch: Watch = unwatched) -> tuple[Follower, Joiner]:
        joiner: Joiner = self.transfer(Joiner.on(self.node("joiner"), self.folder / "joiner", peers))
        journal = Journal(self.folder / "mine", length)
        means = Means(joiner.client, joiner.snapshots, joiner.standing, journal, self.folder, watch)
        return Follower(cast(Swarm, self), means, Unchanging(OUTER)), joiner

    def close(self) -> None:
        for node in reversed(self.nodes):
            self.transfer(node.close())
        self.loop.close()


@contextmanager
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="pp", dir="/tmp") as name:
        opened = Place(Path(name))
        try:
            yield opened
        finally:
            opened.close()


def donor(folder: Path, steps: int, length: int = 16, bits: int = 8) -> Donor:
    made = Donor(folder, N, length, bits)
    for _ in range(steps):
        made.outer_step()
    return made


def lineage_of(*peers: str, at: Donor) -> Lineage:
    return Lineage(at.state.step, at.state.digest, at.state.tokens, peers)


def cannot_be_needed(anchor: Float32, momentum: Float32) -> None:
    raise AssertionError("the initial state is not asked for")


def first_asks(monkeypatch: pytest.MonkeyPatch, peer: str) -> None:
    """Have this peer asked before the others."""

    def order(peers: list[str]) -> None:
        peers.sort(key=lambda one: one == peer)  # the last one of the list is asked first

    monkeypatch.setattr(follow.random, "shuffle", order)


@pytest.mark.parametrize(("missed", "bits"), [(1, 8), (16, 8), (3, 4)])
def test_who_missed_no_more_than_the_journal_has_fetches_no_snapshot(
    tmp_path: Path, watched: Any, missed: int, bits: int
) -> None:
    with place() as here:
        ahead = donor(tmp_path / "ahead", missed, bits=bits)
        peer = here.donor("donor", ahead)
        follower, _ = here.follower([peer], watch=watched)
        mine = donor(tmp_path / "behind", 0).state
        moved: list[int] = []
        found = follower.follow(mine, [peer], lineage_of(peer, at=ahead), lambda: moved.append(mine.step))
        assert found is mine
        assert found.digest == ahead.state.digest
        assert moved == [0]
        done = follower.account()
        assert (done.updates, done.snapshots) == (missed, 0)
        size = N * bits // 8
        assert size * missed < done.bytes < 1.2 * size * missed + 1000 * (missed + 1)
        kept = Journal(here.folder / "mine")
        assert kept.entries() == ahead.journal.entries()
        assert [kept.read(step)[1].digest() for step in range(missed)] == [
            ahead.journal.read(step)[1].digest() for step in range(missed)
        ]
        assert follower.account() == CaughtUp()
        assert [(work.total, work.done, work.unit) for work in watched.works] == [(missed, missed, "updates")]


def test_who_missed_more_fetches_a_snapshot_and_is_as_far_as_the_others(tmp_path: Path, watched: Any) -> None:
    with place() as here:
        ahead = donor(tmp_path / "ahead", 17)
        peer = here.donor("donor", ahead)
        follower, _ = here.follower([peer], watch=watched)
        mine = donor(tmp_path / "behind", 0).state
        found = follower.follow(mine, [peer], lineage_of(peer, at=ahead), lambda: None)
        assert found.digest == ahead.state.digest
        assert (follower.done.updates, follower.done.snapshots) == (0, 1)
        assert follower.done.bytes > 8 * N
        assert [(work.total, work.done, work.unit) for work in watched.works] == [(8 * N, 8 * N, "bytes")]


def test_who_goes_over_to_another_lineage_says_what_it_gives_up_and_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with place() as here:
        ahead, mine = donor(tmp_path / "ahead", 5), donor(here.folder / "mine", 2)
        peer = here.donor("donor", ahead)
        mine._random.standard_normal(10)  # its updates are others from here on
        for _ in range(2):
            mine.outer_step()
        forked = mine.state.digest
        follower, _ = here.follower([peer])
        found = follower.follow(mine.state, [peer], lineage_of(peer, at=ahead), lambda: None)
        assert found.digest == ahead.state.digest
        (said,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert f"from outer step 4 ({forked.hex()[:16]}) to the lineage of outer step 5" in said
        assert "500 against 400" in said
        assert "2 outer steps of ours are given up, those since outer step 2" in said


def test_who_joins_replays_what_was_missed_since_the_snapshot_was_written(tmp_path: Path) -> None:
    with place() as here:
        ahead = donor(tmp_path / "ahead", 3)
        other = donor(tmp_path / "other", 3)
        peers = [here.donor("one", ahead), here.donor("two", other)]
        follower, joiner = here.follower(peers)
        state: OuterState = here.transfer(joiner.fetch(ahead.state.digest, N))
        assert state.step == 3
        for one in (ahead, other):
            one.outer_step()
        here.best_lineage = lambda refresh=False: lineage_of(*peers, at=ahead)  # type: ignore[attr-defined]
        mine = donor(tmp_path / "mine", 0).state
        found = follower.state_of_the_run(mine, cannot_be_needed)
        assert found is not None
        assert found.digest == ahead.state.digest


def test_who_has_what_the_others_hold_fetches_nothing(tmp_path: Path) -> None:
    with place() as here:
        new = donor(tmp_path / "new", 0)
        peer = here.donor("donor", new)
        follower, joiner = here.follower([peer])
        here.best_lineage = lambda refresh=False: lineage_of(peer, at=new)  # type: ignore[attr-defined]
        mine = donor(tmp_path / "mine", 0).state
        assert follower.state_of_the_run(mine, cannot_be_needed) is mine
        assert joiner.client.bytes_received == 0


def test_who_joins_has_one_state_in_memory_and_its_own_again_where_nobody_gives_another(tmp_path: Path) -> None:
    with place() as here:
        ahead = donor(tmp_path / "ahead", 3)
        peer = here.donor("donor", ahead)
        follower, joiner = here.follower([peer])
        mine = donor(tmp_path / "mine", 0).state
        before, initial = mine.digest, mine.anchor.copy()
        seen: list[Lineage | None] = [lineage_of(peer, at=ahead), None]
        here.best_lineage = lambda refresh=False: seen.pop(0)  # type: ignore[attr-defined]
        joiner.peers.clear()  # those who held it are gone
        mine.anchor[:] = 7  # as after a part of a download

        def refill(anchor: Float32, momentum: Float32) -> None:
            anchor[:], momentum[:] = initial, 0

        assert follower.state_of_the_run(mine, refill) is None
        assert (mine.step, mine.digest) == (0, before)
        assert mine.anchor.tobytes() == initial.tobytes()
        seen = [lineage_of(peer, at=ahead)]
        joiner.peers.append(peer)
        found = follower.state_of_the_run(mine, refill)
        assert found is not None
        assert found.digest == ahead.state.digest
        assert found.anchor is mine.anchor


def lying(ahead: Donor, change: Callable[[Any, Any], tuple[Any, Any]]) -> None:
    """Have a donor's journal give other updates than those that were made."""
    read = ahead.journal.read
    ahead.journal.read = lambda step: change(*read(step))  # type: ignore[method-assign]


def wrong_bytes(entry: Any, update: Any) -> tuple[Any, Any]:
    if entry.step_before < 1:
        return entry, update  # the second one is the wrong one
    update.values.flags.writeable = False
    values = update.values.copy()
    values[7] ^= 1
    return entry, type(update)(update.n, values, update.scales)


def test_a_peer_that_gives_a_wrong_update_costs_one_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with place() as here:
        honest, liar = donor(tmp_path / "honest", 3), donor(tmp_path / "liar", 3)
        lying(liar, wrong_bytes)
        peers = [here.donor("honest", honest), here.donor("liar", liar)]
        first_asks(monkeypatch, peers[1])
        follower, joiner = here.follower(peers)
        mine = donor(tmp_path / "behind", 0).state
        found = follower.follow(mine, peers, lineage_of(*peers, at=honest), lambda: None)
        assert found is mine
        assert found.digest == honest.state.digest
        assert (follower.done.updates, follower.done.snapshots) == (3, 0)
        assert [joiner.standing.failures(peer) for peer in peers] == [0, 1]
        assert [entry.step_before for entry in Journal(here.folder / "mine").entries()] == [0, 1, 2]


def test_a_peer_that_has_only_a_liar_to_follow_stays_where_it_was(tmp_path: Path) -> None:
    with place() as here:
        liar = donor(tmp_path / "liar", 3)
        lying(liar, wrong_bytes)
        peer = here.donor("liar", liar)
        follower, joiner = here.follower([peer])
        mine = donor(tmp_path / "behind", 0).state
        before = mine.digest, mine.anchor.tobytes()
        assert follower.follow(mine, [peer], None, lambda: None) is mine
        assert (mine.digest, mine.anchor.tobytes()) == before
        assert joiner.standing.failures(peer) == 1
        assert follower.done == CaughtUp()


def test_a_holder_of_a_lineage_leads_to_nothing_but_that_lineage(tmp_path: Path) -> None:
    with place() as here:
        honest, liar = donor(tmp_path / "honest", 1), Donor(tmp_path / "liar", N)
        liar._random.standard_normal(10)  # its update is another one
        liar.outer_step()
        assert liar.state.digest != honest.state.digest
        peer = here.donor("liar", liar)
        follower, joiner = here.follower([peer])
        mine = donor(tmp_path / "behind", 0).state
        before = mine.digest
        assert follower.follow(mine, [peer], lineage_of(peer, at=honest), lambda: None).digest == before
        assert joiner.standing.failures(peer) >= 1


def test_a_longer_journal_than_ours_is_not_replayed(tmp_path: Path) -> None:
    with place() as here:
        ahead = donor(tmp_path / "ahead", 5)
        peer = here.donor("donor", ahead)
        follower, _ = here.follower([peer], length=4)
        mine = donor(tmp_path / "behind", 0).state
        found = follower.follow(mine, [peer], lineage_of(peer, at=ahead), lambda: None)
        assert found.digest == ahead.state.digest
        assert (follower.done.updates, follower.done.snapshots) == (0, 1)


def test_what_was_done_is_said_in_words() -> None:
    assert str(CaughtUp()) == "nothing, 0.0 MB"
    assert str(CaughtUp(3, 1, 12_345_678)) == "1 snapshot and 3 missed updates, 12.3 MB"
