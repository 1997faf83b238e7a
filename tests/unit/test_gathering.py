"""When a leader begins: nobody awaited is missing, or patience and grace are over."""

from __future__ import annotations

import pytest

from prime_p2p.swarm.gathering import Gathering, Offer, RoundPolicy
from prime_p2p.swarm.groups import Member, lead_order

POLICY = RoundPolicy(patience=10.0, grace=5.0, stall_timeout=4.0, max_group=3)


def offer(peer: str, suspects: set[str] = frozenset(), weight: int = 1) -> Offer:  # type: ignore[assignment]
    return Offer(Member(peer, nonce=0, weight=weight, bandwidth=1.0), frozenset(suspects))


@pytest.fixture
def gathering() -> Gathering:
    gathering = Gathering(POLICY)
    gathering.add(offer("peer-a"))
    gathering.open(100.0)
    return gathering


def test_a_group_begins_as_soon_as_nobody_is_awaited(gathering: Gathering) -> None:
    assert not gathering.closes({"peer-b"}, 100.0)
    assert gathering.closes((), 100.0)


def test_a_group_begins_when_grace_is_over_whoever_is_missing(gathering: Gathering) -> None:
    assert not gathering.closes({"peer-b"}, 114.9)
    assert gathering.closes({"peer-b"}, 115.0)


def test_nothing_begins_without_a_join(gathering: Gathering) -> None:
    gathering.remove("peer-a")
    assert not gathering.closes((), 200.0)
    assert gathering.wake_at(100.0) is None


def test_nothing_begins_where_this_peer_does_not_lead() -> None:
    gathering = Gathering(POLICY)
    gathering.add(offer("peer-a"))
    assert not gathering.closes((), 200.0)
    assert gathering.wake_at(100.0) is None


def test_a_peer_that_waits_with_a_leader_out_of_reach_is_waited_for_longer(gathering: Gathering) -> None:
    gathering.detained.add("peer-b")
    assert not gathering.closes((), 115.0)
    assert gathering.closes((), 115.0 + POLICY.longest_gathering)
    gathering.add(offer("peer-b"))
    assert gathering.closes((), 100.0)


def test_a_peer_that_is_lost_is_not_detained(gathering: Gathering) -> None:
    gathering.detained.add("peer-b")
    gathering.remove("peer-b")
    assert gathering.closes((), 100.0)


def test_the_leader_looks_again_when_patience_and_when_grace_end(gathering: Gathering) -> None:
    assert gathering.wake_at(100.0) == 110.0
    assert gathering.wake_at(110.0) == 115.0
    assert gathering.wake_at(115.0) is None


def test_the_missing_are_told_to_hurry_once_patience_ends(gathering: Gathering) -> None:
    assert gathering.to_hurry({"peer-b": 0.0}, 109.9) == []
    assert gathering.to_hurry({"peer-b": 0.0}, 110.0) == ["peer-b"]
    assert gathering.to_hurry({"peer-b": 0.0}, 111.0) == []


def test_a_peer_that_will_be_too_late_is_told_to_hurry_at_once(gathering: Gathering) -> None:
    assert gathering.to_hurry({"peer-b": 110.0, "peer-c": 110.1}, 100.0) == ["peer-c"]


def test_a_gathering_that_opens_anew_tells_everyone_again(gathering: Gathering) -> None:
    gathering.to_hurry({"peer-b": 0.0}, 110.0)
    gathering.open(120.0)
    assert gathering.to_hurry({"peer-b": 0.0}, 130.0) == ["peer-b"]


def test_the_group_has_the_members_in_the_order_in_which_they_lead(gathering: Gathering) -> None:
    for peer in ("peer-b", "peer-c"):
        gathering.add(offer(peer, weight=7))
    group = gathering.group("run", 3, bytes(32))
    assert list(group.peer_ids) == lead_order("run", 3, ["peer-a", "peer-b", "peer-c"])
    assert (group.run, group.step, group.digest, group.total_weight) == ("run", 3, bytes(32), 15)


def test_a_group_has_no_more_members_than_it_may(gathering: Gathering) -> None:
    for peer in ("peer-b", "peer-c", "peer-d", "peer-e"):
        gathering.add(offer(peer))
    assert gathering.group("run", 3, bytes(32)).peer_ids == tuple(lead_order("run", 3, gathering.offers)[:3])


def test_peers_that_cannot_work_together_are_not_in_one_group(gathering: Gathering) -> None:
    gathering.add(offer("peer-b", suspects={"peer-c"}))
    gathering.add(offer("peer-c"))
    assert set(gathering.group("run", 3, bytes(32)).peer_ids) == {"peer-a", "peer-b"}


def test_a_newer_join_of_a_peer_replaces_the_one_before(gathering: Gathering) -> None:
    gathering.add(offer("peer-a", weight=9))
    assert gathering.group("run", 3, bytes(32)).total_weight == 9
