"""Who reads what: disjoint while the membership is stable, and a bound on what is read twice where it changes."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_p2p.training.data.assignment import Assignment, Place, permuted

PEERS = tuple("abcdefg")


@dataclass
class Run:
    """A run as far as reading goes: peers read, and what they have read is contributed or lost."""

    share: int
    sequences: int
    seed: int = 0
    contributed: int = 0
    step: int = 0
    group: tuple[str, ...] = ()
    read: Counter[int] = field(default_factory=Counter)  # positions of the stream
    bound: int = 0

    def reads(self, peer: str, count: int) -> list[int]:
        assignment = Assignment(self.seed, peer, self.sequences)
        place = partial(Place, self.contributed, self.step, self.group, self.share)
        return [assignment.position(place(read)) for read in range(count)]

    def round(self, counts: dict[str, int]) -> None:
        """Each of these peers reads so many sequences and contributes them."""
        for peer, count in counts.items():
            self.read.update(self.reads(peer, count))
        members = sum(min(counts.get(peer, 0), self.share) for peer in self.group)
        outsiders = sum(counts.values()) - members
        self.bound += len(self.group) * self.share - members + outsiders
        self.contributed += sum(counts.values())
        self.group, self.step = tuple(sorted(counts)), self.step + 1

    @property
    def read_twice(self) -> int:
        return self.read.total() - len(self.read)


@given(st.integers(1, 5000), st.integers(0, 2**64 - 1))
@settings(max_examples=40)
def test_an_order_of_an_epoch_has_every_sequence_once(n: int, key: int) -> None:
    assert sorted(permuted(range(n), n, key).tolist()) == list(range(n))


def test_the_order_of_an_epoch_looks_random_and_no_epoch_has_that_of_another() -> None:
    n = 10_000
    orders = [Assignment(3, "a", n).indices(np.arange(epoch * n, (epoch + 1) * n)) for epoch in range(3)]
    for order in orders:
        assert abs(np.corrcoef(order, np.arange(n))[0, 1]) < 0.05
        assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.05
    assert all(np.mean(one == other) < 0.01 for one, other in itertools.pairwise(orders))


@given(st.permutations(PEERS).map(lambda peers: peers[:4]), st.integers(1, 20), st.integers(1, 30))
def test_with_a_stable_group_an_epoch_goes_through_the_text_once(peers: list[str], share: int, rounds: int) -> None:
    epoch = len(peers) * share * rounds
    run = Run(share, epoch, group=tuple(peers))
    for _ in range(2 * rounds):
        run.round(dict.fromkeys(peers, share))
    assert run.read == Counter(range(2 * epoch))
    assignment = Assignment(run.seed, "a", epoch)
    for first in (0, epoch):
        assert sorted(assignment.indices(np.arange(first, first + epoch)).tolist()) == list(range(epoch))


@given(st.sets(st.sampled_from(PEERS), min_size=1), st.integers(1, 50), st.integers(0, 10**12), st.integers(0, 9))
def test_no_two_members_read_the_same_in_a_round_however_much_of_it_each_reads(
    group: set[str], share: int, contributed: int, step: int
) -> None:
    run = Run(share, 1000, contributed=contributed, step=step, group=tuple(group))
    read = [position for peer in group for position in run.reads(peer, share)]
    assert sorted(read) == list(range(contributed, contributed + len(group) * share))


@given(
    st.lists(st.dictionaries(st.sampled_from(PEERS), st.integers(1, 12), min_size=1), min_size=1, max_size=40),
    st.integers(1, 12),
    st.integers(4, 2000),
)
@settings(max_examples=200)
def test_whoever_comes_goes_and_is_slow_what_is_read_twice_stays_within_the_bound(
    rounds: list[dict[str, int]], share: int, sequences: int
) -> None:
    run = Run(share, sequences)
    for counts in rounds:
        run.round(counts)
    assert run.read_twice <= run.bound
    gaps = run.contributed - sum(position < run.contributed for position in run.read)
    ahead = sum(position >= run.contributed for position in run.read)
    assert gaps == run.read_twice + ahead


def test_one_peer_that_leaves_costs_its_share_once() -> None:
    run = Run(share=10, sequences=10_000, group=("a", "b", "c"))
    for peers in (["a", "b", "c"], ["b", "c"], ["b", "c"], ["b", "c"]):
        run.round(dict.fromkeys(peers, 10))
    assert run.read_twice == run.bound == 10


def test_a_peer_that_comes_reads_apart_from_the_others() -> None:
    run = Run(share=10, sequences=10_000, group=("a", "b"))
    for peers in ("ab", "abc", "abc", "abc"):
        run.round(dict.fromkeys(peers, 10))
    assert run.read_twice == 0


def test_a_share_that_was_read_and_not_contributed_is_not_read_again_nor_that_of_a_neighbour() -> None:
    run = Run(share=10, sequences=10_000, group=("a", "b"))
    first, second = run.reads("a", 20)[:10], run.reads("a", 20)[10:]
    assert set(second).isdisjoint(first)
    assert set(second).isdisjoint(run.reads("b", 10))


def test_every_process_finds_the_same() -> None:
    place = Place(contributed=12345, step=6, group=("b", "a"), share=8, read=3)
    assignment = Assignment(7, "b", 1000)
    program = (
        "import numpy as np\n"
        "from prime_p2p.training.data.assignment import Assignment, Place\n"
        "assignment = Assignment(7, 'b', 1000)\n"
        "first = assignment.position(Place(12345, 6, ('a', 'b'), 8, 3))\n"
        "print(first, assignment.indices(np.arange(first, first + 4)).tolist())"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    first = assignment.position(place)
    assert found == f"{first} {assignment.indices(np.arange(first, first + 4)).tolist()}"
