"""Properties of the round over many simulated runs; a failure names the seed. See ``simulation``."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from simulation import FIRST, SEEDS, CommitRecord, Conditions, Peer, World, names, swarm

from prime_p2p.network.frames import Message
from prime_p2p.swarm import events as ev
from prime_p2p.swarm import messages as say

CALM = Conditions()
LONGEST_REDUCE = CALM.reduce[1] + CALM.reduce_spread
DETECTION = 1.25 * CALM.policy.stall_timeout
DELAYS = 2.0  # all message delays on the way to a commit, and more


def everybody_at(world: World, step: int) -> Callable[[], bool]:
    return lambda: all(peer.state[0] >= step for peer in world.peers.values() if peer.up)


# ---- without faults


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
def test_without_faults_all_peers_commit_every_step_together_at_the_first_attempt(count: int) -> None:
    for seed in range(1 + 24 // count):
        conditions = replace(CALM, view_age=[1.0, 4.0, 8.0][seed % 3], view_gaps=[0.0, 0.3][seed % 2])
        world = swarm(seed, count, conditions)
        world.time.run(1000.0, until=everybody_at(world, 8))
        groups = world.groups_by_state()
        assert len(groups) >= 8, seed
        for state, of_state in groups.items():
            assert [set(group.peer_ids) for group in of_state] == [set(world.peers)], (seed, state[0])
        assert {commit.attempts for commit in world.commits} == {1}, seed
        assert not any(peer.missed for peer in world.peers.values()), seed


def test_no_peer_waits_longer_than_its_slowest_companion_takes() -> None:
    for seed in range(10):
        world = swarm(seed, 4)
        world.time.run(1000.0, until=everybody_at(world, 8))
        for commit in world.commits:
            last = max(other.ready_at for other in world.commits if other.before == commit.before)
            assert commit.at - last < LONGEST_REDUCE + DELAYS, (seed, commit.before[0])


def test_a_peer_that_sits_out_keeps_nobody_waiting_and_comes_back() -> None:
    for seed in range(12):
        world = swarm(seed, 4, replace(CALM, unfit=0.15))
        world.time.run(1000.0, until=everybody_at(world, 12))
        sat_out = [at for peer in world.peers.values() for at in peer.sat_out]
        assert len(world.groups_by_state()) == max(peer.state[0] for peer in world.peers.values()), seed
        for commit in world.commits:
            ready = [other.ready_at for other in world.commits if other.group == commit.group]
            last = max([*ready, *(at for at in sat_out if at <= commit.at)])
            assert commit.at - last < LONGEST_REDUCE + DELAYS, (seed, commit.before[0])
        assert all(any(commit.peer == name for commit in world.commits[-12:]) for name in world.peers), seed


def test_a_peer_slower_than_patience_is_hurried_and_takes_part() -> None:
    for seed in range(10):
        world = swarm(seed, 3)
        world.peers["peer-0000"].take(ev.Woken())
        world.time.run(1.0)
        world.peers["peer-0000"]._train_for(500.0)
        world.time.run(100.0, until=everybody_at(world, 1))
        assert {len(commit.group.members) for commit in world.commits} == {3}, seed


def test_a_lone_peer_commits_alone() -> None:
    world = swarm(0, 1)
    world.time.run(1000.0, until=everybody_at(world, 20))
    assert [commit.group.peer_ids for commit in world.commits] == [("peer-0000",)] * 20


@pytest.mark.parametrize(("count", "most"), [(9, 8), (17, 16), (33, 32), (9, 4), (17, 8), (33, 16)])
def test_of_more_peers_than_a_group_may_have_the_rest_miss_the_step_and_follow(count: int, most: int) -> None:
    """Nobody is left alone in a group, and there is no second group beside the first."""
    world = swarm(0, count, replace(CALM, policy=replace(CALM.policy, max_group=most)))
    world.time.run(200.0, until=everybody_at(world, 3))
    assert {len(commit.group.members) for commit in world.commits} == {most}
    assert len(world.groups_by_state()) == max(peer.state[0] for peer in world.peers.values())
    assert everybody_at(world, 3)()


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_newcomers_neither_delay_nor_split_the_group(first: int) -> None:
    """They join a run under way, some of them knowing only one of the others, and take part sooner or later."""
    for seed in range(first, first + 10):
        draw = random.Random(seed)
        old = names(draw.randrange(1, 6))
        conditions = replace(CALM, training=(4.0, draw.choice([8.0, 14.0])), view_gaps=draw.choice([0.0, 0.2]))
        world = swarm(seed, len(old), conditions)
        world.time.run(60.0, until=everybody_at(world, 1))  # who comes earlier begins the run like all others
        for index in range(2):
            world.time.run(draw.uniform(10.0, 25.0))
            source = draw.choice(list(world.peers))
            world.add(f"newcomer-{index}", world.peers[source].state, {source} if draw.random() < 0.6 else None)
        world.time.run(100.0)
        for state, groups in world.groups_by_state().items():
            (group,) = groups
            assert set(old) <= set(group.peer_ids), (seed, state[0])
            _assert_nobody_waited(world, [commit for commit in world.commits if commit.group == group], old, seed)
        for newcomer in set(world.peers) - set(old):
            assert any(commit.peer == newcomer for commit in world.commits), (seed, newcomer)


def _assert_nobody_waited(world: World, commits: list[CommitRecord], old: list[str], seed: int) -> None:
    """The peers that took part before are the only ones that a step waits for."""
    before = {commit.peer for commit in world.commits if commit.before[0] < commits[0].before[0]}
    last = max(commit.ready_at for commit in commits if commit.peer in before or commit.peer in old)
    for commit in commits:
        assert commit.at - last < LONGEST_REDUCE + DELAYS, (seed, commit.before[0], commit.peer)


# ---- one fault


def crash(world: World, peer: Peer) -> None:
    world.network.crash(peer.name)


def fall_silent(world: World, peer: Peer) -> None:
    world.network.crash(peer.name, silent=True)


def freeze(world: World, peer: Peer) -> None:
    world.network.freeze(peer.name, world.time.random.choice([1.0, 4.0, 5.5, 6.5, 9.0, 30.0]))


def fail_after(world: World, count: int, fault: Callable[[World, Peer], None]) -> list[tuple[str, float, int]]:
    """Let a fault hit whoever does the action of this number from now on, right after it.

    Returns a list that then holds whom it hit, when, and the outer step it was at.
    """
    last = world.actions + count
    hit: list[tuple[str, float, int]] = []

    def after_action(peer: Peer, action: ev.Action) -> None:
        if world.actions == last:
            hit.append((peer.name, world.time.now, peer.state[0]))
            fault(world, peer)

    world.after_action = after_action
    return hit


@pytest.mark.parametrize("fault", [crash, fall_silent, freeze])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_after_one_fault_at_any_instant_the_survivors_commit_that_step(
    count: int, fault: Callable[[World, Peer], None]
) -> None:
    """It comes after each single action of a step in turn: in the middle of the joins, of the begins, of the votes."""
    for seed in range(6 - count):
        action = 0
        while True:
            action += 1
            world = swarm(seed, count)
            world.time.run(100.0, until=everybody_at(world, 1))
            hit = fail_after(world, action, fault)
            over = everybody_at(world, 3)
            world.time.run(60.0, until=lambda hit=hit, over=over: bool(hit) and over())
            peer, at, step = hit[0]
            if step > 1:
                break  # the step was over
            _assert_survivors_committed(world, peer, at, (seed, action))


def _assert_survivors_committed(world: World, failed: str, at: float, case: tuple[int, int]) -> None:
    survivors = set(world.peers) - {failed}
    commits = [commit for commit in world.commits if commit.before[0] == 1 and commit.peer in survivors]
    assert len(commits) == len(survivors), case
    assert len({commit.group for commit in commits}) == 1, case
    assert set(commits[0].group.peer_ids) in (survivors, set(world.peers)), case
    ready_at = max(at, *(commit.ready_at for commit in commits))
    assert max(commit.at for commit in commits) - ready_at < DETECTION + LONGEST_REDUCE + DELAYS, case
    assert not any(world.peers[name].missed for name in survivors), case


@pytest.mark.parametrize("kind", [say.Join, say.Open, say.Begin, say.Vote])
def test_a_leader_that_dies_is_replaced(kind: type[Message]) -> None:
    """It dies right after its first message of this kind in the second step."""
    for seed in range(10):
        world = swarm(seed, 4)
        world.time.run(100.0, until=everybody_at(world, 1))
        leader: list[str] = []

        def after_action(peer: Peer, action: ev.Action, world: World = world, leader: list[str] = leader) -> None:
            of_kind = isinstance(action, ev.Send) and isinstance(action.message, kind)
            if of_kind and peer.state[0] == 1 and not leader:
                leader.append(peer.name)
                world.network.crash(peer.name)

        world.after_action = after_action
        world.time.run(100.0, until=everybody_at(world, 4))
        survivors = set(world.peers) - set(leader)
        assert {commit.group.peer_ids for commit in world.commits if commit.before[0] == 3} != set(), seed
        for commit in world.commits:
            assert commit.before[0] < 2 or set(commit.group.peer_ids) == survivors, seed


# ---- many faults


def storm(seed: int) -> World:
    """A swarm of 2 to 6 to which up to five faults and newcomers come in two minutes; then all heal, and it goes on."""
    draw = random.Random(seed)
    world = swarm(seed, draw.randrange(2, 7), replace(CALM, view_gaps=draw.choice([0.0, 0.2])))
    for _ in range(draw.randrange(1, 6)):
        world.time.at(draw.uniform(3.0, 120.0), strike, world, draw)
    for second in range(0, 300, 5):
        world.time.at(float(second), assert_nobody_is_stuck, world, seed)
    world.time.run(190.0)
    for one in world.peers:
        for other in world.peers:
            if one < other:
                world.network.heal(one, other)
    world.time.run(110.0)
    return world


def strike(world: World, draw: random.Random) -> None:
    live = [peer.name for peer in world.peers.values() if peer.up]
    kind = draw.choice(["crash", "freeze", "cut", "partition", "join"])
    if kind == "crash" and len(live) > 2:
        world.network.crash(draw.choice(live), silent=draw.random() < 0.5)
    elif kind == "freeze" and live:
        world.network.freeze(draw.choice(live), draw.uniform(0.5, 20.0))
    elif kind == "join" and live:
        world.add(f"newcomer-{len(world.peers)}", world.peers[draw.choice(live)].state)
    elif len(live) > 1:
        draw.shuffle(live)
        here = draw.randrange(1, len(live)) if kind == "partition" else 1
        there = live[here:] if kind == "partition" else live[1:2]
        seconds = draw.uniform(0.5, 60.0)
        for one in live[:here]:
            for other in there:
                world.network.cut(one, other)
                world.time.after(seconds, world.network.heal, one, other)


def assert_nobody_is_stuck(world: World, seed: int) -> None:
    """Whoever is ready commits or misses before every wait of a round has ended twice."""
    bound = 2 * (2 * CALM.policy.longest_gathering + DETECTION + LONGEST_REDUCE)
    for peer in world.peers.values():
        if peer.up and peer.ready_since is not None:
            assert world.time.now - peer.ready_since < bound, (seed, peer.name, peer.machine.phase)


def assert_no_needless_fork(world: World, seed: int) -> None:
    """Different groups from one state, committed by peers that could reach each other all the time, are a fault, unless
    neither peer was in the other's group and some of the two groups could not reach each other."""
    for i, one in enumerate(world.commits):
        for other in world.commits[:i]:
            if one.before == other.before and one.group != other.group and one.peer != other.peer:
                span = min(one.since, other.since), max(one.at, other.at)
                related = one.peer in other.group.peer_ids or other.peer in one.group.peer_ids
                whole = not any(
                    a != b and world.network.apart(a, b, *span)
                    for a in one.group.peer_ids
                    for b in other.group.peer_ids
                )
                if (related or whole) and not world.network.apart(one.peer, other.peer, *span):
                    raise AssertionError((seed, one.before[0], one.peer, other.peer))


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_through_any_faults_nobody_is_stuck_or_forks_needlessly_and_all_end_on_one_lineage(first: int) -> None:
    for seed in range(first, first + 10):
        world = storm(seed)
        assert_no_needless_fork(world, seed)
        live = [peer.state for peer in world.peers.values() if peer.alive]
        lineage = world.lineage(max(live, key=world.rank))
        assert set(live) <= set(lineage[:6]), seed


def test_two_halves_that_were_apart_go_on_with_the_lineage_of_more_tokens() -> None:
    for seed in range(5):
        world = swarm(seed, 5)
        world.time.run(100.0, until=everybody_at(world, 2))
        halves = names(5)[:2], names(5)[2:]
        for one in halves[0]:
            for other in halves[1]:
                world.network.cut(one, other)
        world.time.run(60.0)
        apart = {peer.state for peer in world.peers.values()}
        best = max(apart, key=world.rank)
        assert not all(state in world.lineage(best) for state in apart), seed
        for one in halves[0]:
            for other in halves[1]:
                world.network.heal(one, other)
        world.time.run(60.0)
        assert all(best in world.lineage(peer.state) for peer in world.peers.values()), seed
        assert FIRST in world.lineage(best)
