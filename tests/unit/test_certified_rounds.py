"""That all commits of simulated runs are certified."""

from __future__ import annotations

import pytest
from simulation import SEEDS, CommitRecord, signature, swarm
from test_rounds import everybody_at, storm


def assert_certified_by_all(commit: CommitRecord, seed: int) -> None:
    certificate = commit.certificate
    assert certificate.group == commit.group, seed
    signed = [signature(peer, commit.group.id, certificate.update_digest) for peer in commit.group.peer_ids]
    assert list(certificate.signatures) == signed, seed


@pytest.mark.parametrize("count", [1, 2, 5])
def test_without_faults_every_member_has_the_certificate_of_every_outer_step(count: int) -> None:
    for seed in range(8):
        world = swarm(seed, count)
        world.time.run(1000.0, until=everybody_at(world, 4))
        assert len(world.commits) >= 4 * count, seed
        for commit in world.commits:
            assert_certified_by_all(commit, seed)


def test_through_any_faults_whoever_commits_has_the_signatures_of_all() -> None:
    for seed in range(SEEDS):
        for commit in storm(seed).commits:
            assert_certified_by_all(commit, seed)
