"""The group of one round: what its id binds, who leads, and who is left out when connections are broken."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_p2p.swarm.groups import Group, Member, lead_order, without_conflicts

PEERS = [f"peer-{index:04}" for index in range(8)]
MEMBERS = tuple(Member(peer, nonce=index, weight=10 * index, bandwidth=100.0) for index, peer in enumerate(PEERS[:4]))
GROUP = Group("run", step=3, digest=bytes(32), members=MEMBERS)

suspicions = st.dictionaries(st.sampled_from(PEERS), st.sets(st.sampled_from(PEERS)), min_size=1)


@pytest.mark.parametrize(
    "other",
    [
        replace(GROUP, run="another"),
        replace(GROUP, step=4),
        replace(GROUP, digest=bytes(31) + b"\1"),
        replace(GROUP, members=MEMBERS[:3]),
        replace(GROUP, members=MEMBERS[::-1]),
        *(
            replace(GROUP, members=(replace(MEMBERS[0], **change), *MEMBERS[1:]))
            for change in ({"peer_id": PEERS[7]}, {"nonce": 9}, {"weight": 9}, {"bandwidth": 9.0})
        ),
    ],
)
def test_the_id_binds_all_that_members_must_agree_on(other: Group) -> None:
    assert other.id != GROUP.id


def test_equal_groups_have_the_same_id() -> None:
    assert Group("run", 3, bytes(32), tuple(replace(member) for member in MEMBERS)).id == GROUP.id
    assert len(GROUP.id) == 32


def test_a_group_knows_its_members_and_their_parts() -> None:
    assert GROUP.peer_ids == tuple(PEERS[:4])
    assert GROUP.total_weight == 60
    assert GROUP.member(PEERS[2]) is MEMBERS[2]
    assert GROUP.member(PEERS[5]) is None
    assert GROUP.part_blocks(10) == [3, 3, 2, 2]


@given(st.lists(st.sampled_from(PEERS), min_size=1), st.integers(0, 100))
def test_all_peers_find_the_same_leaders_whatever_they_heard_first(peers: list[str], step: int) -> None:
    order = lead_order("run", step, peers)
    assert sorted(order) == sorted(set(peers))
    assert lead_order("run", step, reversed(peers)) == order
    assert lead_order("run", step, order[1:]) == order[1:]


def test_everybody_leads_in_turn() -> None:
    assert {lead_order("run", step, PEERS)[0] for step in range(100)} == set(PEERS)


@given(suspicions)
def test_nobody_kept_suspects_anybody_kept(suspects: dict[str, set[str]]) -> None:
    kept = without_conflicts(suspects)
    assert kept
    assert not any((suspects[peer] - {peer}) & kept for peer in kept)


@given(suspicions)
def test_only_peers_with_a_broken_connection_are_left_out(suspects: dict[str, set[str]]) -> None:
    left_out = set(suspects) - without_conflicts(suspects)
    for peer in left_out:
        accusers = {other for other in suspects if peer in suspects[other] and other != peer}
        assert accusers or (suspects[peer] - {peer}) & set(suspects)


@given(suspicions)
def test_who_is_left_out_does_not_depend_on_the_order_of_the_joins(suspects: dict[str, set[str]]) -> None:
    assert without_conflicts(dict(reversed(list(suspects.items())))) == without_conflicts(suspects)


@given(st.sets(st.sampled_from(PEERS[1:]), min_size=2))
def test_one_peer_that_works_with_nobody_does_not_cost_the_others_their_place(others: set[str]) -> None:
    accuser = {PEERS[0]: set(others)} | {peer: set[str]() for peer in others}
    accused = {PEERS[0]: set[str]()} | {peer: {PEERS[0]} for peer in others}
    assert without_conflicts(accuser) == without_conflicts(accused) == others


def test_of_two_that_cannot_work_together_the_accused_is_left_out() -> None:
    assert without_conflicts({PEERS[0]: {PEERS[1]}, PEERS[1]: set(), PEERS[2]: set()}) == {PEERS[0], PEERS[2]}
