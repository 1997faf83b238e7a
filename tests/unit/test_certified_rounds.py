"""Which commits of simulated runs are certified: those by votes, and no group that nobody committed."""

from __future__ import annotations

import pytest
from simulation import SEEDS, CommitRecord, signature, swarm
from test_rounds import everybody_at, storm


def assert_certified_by_all(commit: CommitRecord, seed: int) -> None:
    certificate = commit.certificate
    assert certificate is not None, seed
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


def test_through_any_faults_whoever_has_a_certificate_has_all_signatures_and_only_of_what_was_committed() -> None:
    for seed in range(SEEDS):
        world = storm(seed)
        for commit in world.commits:
            if commit.certificate is not None:
                assert_certified_by_all(commit, seed)
        for group in {commit.group for commit in world.commits}:
            certified = [commit for commit in world.commits if commit.group == group and commit.certificate]
            assert certified, (seed, group.step)  # somebody has counted all votes, or nobody could commit
