"""What single faults at the worst moments cost the others, in simulated runs; a failure names the seed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulation import SEEDS, Conditions, Peer, World, swarm
from test_rounds import DELAYS, DETECTION, LONGEST_REDUCE, everybody_at

from prime_p2p.swarm import events as ev
from prime_p2p.swarm import messages as say
from prime_p2p.swarm.rounds import MOST_ATTEMPTS

CALM = Conditions()
STALL = CALM.policy.stall_timeout


def says(kind: type[say.Message], action: ev.Action) -> bool:
    return isinstance(action, ev.Send) and isinstance(action.message, kind)


@pytest.mark.parametrize("moment", ["joined", "leads", "reduces", "voted"])
@pytest.mark.parametrize("together", [1, 2])
def test_frozen_peers_cost_the_others_one_detection_whatever_they_were_doing(moment: str, together: int) -> None:
    """Not patience, nor the timers of one phase after the other, nor a detection for each of them."""
    bound = DETECTION + LONGEST_REDUCE + DELAYS
    assert bound < CALM.policy.patience + CALM.policy.grace
    for seed in range(8):
        world = swarm(seed, 5)
        world.time.run(100.0, until=everybody_at(world, 1))
        frozen: dict[str, float] = {}

        def after_action(
            peer: Peer, action: ev.Action, world: World = world, frozen: dict[str, float] = frozen
        ) -> None:
            now = {
                "joined": says(say.Join, action),
                "leads": says(say.Open, action),
                "reduces": isinstance(action, ev.StartReduce),
                "voted": says(say.Vote, action),
            }[moment]
            if now and peer.state[0] == 1 and len(frozen) < together and peer.name not in frozen:
                frozen[peer.name] = world.time.now
                world.network.freeze(peer.name, 300.0)

        world.after_action = after_action
        world.time.run(100.0, until=everybody_at(world, 2))
        assert frozen, seed
        commits = [commit for commit in world.commits if commit.before[0] == 1 and commit.peer not in frozen]
        assert {commit.peer for commit in commits} == set(world.peers) - set(frozen), seed
        assert len({commit.group for commit in commits}) == 1, seed
        since = max(*frozen.values(), *(commit.ready_at for commit in commits))
        assert max(commit.at for commit in commits) - since < bound, seed


@pytest.mark.parametrize("fault", ["cut off", "crash", "freeze"])
@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_a_fault_when_half_of_a_group_has_committed_makes_nobody_apply_twice_or_try_for_ever(
    first: int, fault: str
) -> None:
    for seed in range(first, first + 10):
        count = 2 + seed % 5
        world = swarm(seed, count)
        world.time.run(100.0, until=everybody_at(world, 1))
        committed: list[str] = []

        def after_action(peer: Peer, action: ev.Action, world: World = world, committed: list[str] = committed) -> None:
            if isinstance(action, ev.Commit) and peer.state[0] == 1 and len(committed) < (len(world.peers) + 1) // 2:
                committed.append(peer.name)
                if len(committed) == (len(world.peers) + 1) // 2:
                    strike(world, committed, fault)

        world.after_action = after_action
        world.time.run(200.0)
        assert len(committed) == (count + 1) // 2, seed
        for name, peer in world.peers.items():
            commits = [commit for commit in world.commits if commit.peer == name]
            assert len({commit.before for commit in commits}) == len(commits), (seed, name)
            assert all(commit.attempts <= 3 < MOST_ATTEMPTS for commit in commits), (seed, name)
            assert not any("groups failed" in reason for reason in peer.missed), (seed, name)
        live = [peer.state for peer in world.peers.values() if peer.alive]
        lineage = world.lineage(max(live, key=world.rank))
        assert len(lineage) > 8, seed
        assert set(live) <= set(lineage[:4]), seed


def strike(world: World, committed: list[str], fault: str) -> None:
    """A fault hits those that have committed just now, before the others know."""
    for name in committed:
        if fault == "crash" and len(committed) < len(world.peers):
            world.network.crash(name)
        elif fault == "freeze":
            world.network.freeze(name, 2 * STALL)
        elif fault == "cut off":
            for other in set(world.peers) - set(committed):
                world.network.cut(name, other)
                world.time.after(30.0, world.network.heal, name, other)


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_groups_that_fail_for_everybody_every_time_are_given_up_and_tried_again_by_all_together(first: int) -> None:
    """No member is at fault, so none can be left out: after some attempts the peers train on, and nobody holds against
    the others that they gave up too."""
    for seed in range(first, first + 10):
        longest = [4.0, 4.2, 8.0][seed % 3]  # from all ready at about the same time to not
        world = swarm(seed, 2 + seed % 4, replace(CALM, reduce=(1.0, 1.0), training=(4.0, longest)))
        world.time.run(100.0, until=everybody_at(world, 1))
        begun = 0

        def after_action(peer: Peer, action: ev.Action, world: World = world) -> None:
            nonlocal begun
            if isinstance(action, ev.StartReduce) and peer.state[0] == 1:
                begun += 1
                world.time.after(0.1, peer.take, ev.ReduceFailed(action.group.id, frozenset()))

        world.after_action = after_action
        world.time.run(40.0)
        assert all(any("groups failed" in reason for reason in peer.missed) for peer in world.peers.values()), seed
        assert begun <= len(world.peers) * MOST_ATTEMPTS * 12, seed  # a round every five seconds at most
        broken_until = world.time.now
        world.after_action = lambda peer, action: None
        world.time.run(60.0, until=everybody_at(world, 3))
        assert everybody_at(world, 3)(), seed
        assert {len(groups) for groups in world.groups_by_state().values()} == {1}, seed
        for commit in world.commits:
            if commit.before[0] != 1:  # a peer that was in fewer of the groups may have been alone when it gave up
                assert set(commit.group.peer_ids) == set(world.peers), (seed, commit.before[0])
            else:
                last = max(other.ready_at for other in world.commits if other.before == commit.before)
                assert commit.at - max(last, broken_until) < LONGEST_REDUCE + DELAYS, seed
