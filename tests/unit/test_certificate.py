"""Certificates: signed by all members of a group, in one form, and by nobody else for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import pytest
from certificates import ANNE, BOB, EVE, RUN, certificate, certify, group

from prime_p2p.swarm.certificate import MAX_CERTIFICATE, BadCertificate, Certificate
from prime_p2p.swarm.groups import Group, Member

GOOD = certificate(7, {ANNE: 10, BOB: 20})


def fields() -> list[Any]:
    """Of a good one, to be changed and packed."""
    unpacked: list[Any] = msgpack.unpackb(GOOD.to_bytes())
    return unpacked


def test_a_certificate_is_the_same_after_its_bytes() -> None:
    read = Certificate.from_bytes(GOOD.to_bytes(), RUN)
    assert read == GOOD
    assert read.id == GOOD.id
    read.check()


def test_votes_make_one_only_where_all_are_there_and_the_same() -> None:
    votes = {
        peer: (GOOD.update_digest, signed) for peer, signed in zip(GOOD.group.peer_ids, GOOD.signatures, strict=True)
    }
    assert Certificate.of(GOOD.group, votes) == GOOD
    assert Certificate.of(GOOD.group, {ANNE.peer_id: votes[ANNE.peer_id]}) is None
    assert Certificate.of(GOOD.group, votes | {BOB.peer_id: (b"x" * 32, bytes(64))}) is None


@pytest.mark.parametrize(
    "changed",
    [
        replace(GOOD.group, run="other"),
        replace(GOOD.group, step=8),
        replace(GOOD.group, digest=b"d" * 32),
        replace(GOOD.group, members=(replace(GOOD.group.members[0], weight=1000), GOOD.group.members[1])),
        replace(GOOD.group, members=(Member(EVE.peer_id, 7, 10, 100.0), GOOD.group.members[1])),
        replace(GOOD.group, members=(replace(GOOD.group.members[0], nonce=8), GOOD.group.members[1])),
    ],
    ids=["run", "step", "state", "tokens", "member", "nonce"],
)
def test_whatever_is_changed_nobody_has_signed(changed: Group) -> None:
    with pytest.raises(BadCertificate, match="not signed by its member"):
        replace(GOOD, group=changed).check()


def test_another_update_or_the_signature_of_another_peer_is_not_signed() -> None:
    with pytest.raises(BadCertificate, match=ANNE.peer_id):
        replace(GOOD, update_digest=b"x" * 32).check()
    with pytest.raises(BadCertificate, match=BOB.peer_id):
        certify(group(7, {ANNE: 10, BOB: 20}), ANNE, EVE).check()


def test_what_no_group_of_the_run_can_have_committed_is_refused() -> None:
    with pytest.raises(BadCertificate, match="of another run"):
        Certificate.from_bytes(GOOD.to_bytes(), "other")
    with pytest.raises(BadCertificate, match="no tokens"):
        Certificate.from_bytes(certificate(7, {ANNE: 0, BOB: 0}).to_bytes(), RUN)
    anne = GOOD.group.members[0]
    twice = certify(replace(GOOD.group, members=(anne, anne)), ANNE, ANNE)
    with pytest.raises(BadCertificate, match="a member twice"):
        Certificate.from_bytes(twice.to_bytes(), RUN)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ((1,), -1),
        ((1,), True),
        ((2,), b"short"),
        ((3,), None),
        ((4,), []),
        ((4, 0), ["peer"]),
        ((4, 0, 2), 2**63),
        ((4, 0, 3), 100),
        ((4, 0, 3), float("nan")),
        ((4, 0, 4), b"signature"),
    ],
)
def test_fields_that_are_none_are_refused(place: tuple[int, ...], value: Any) -> None:
    changed = fields()
    inner = changed
    for index in place[:-1]:
        inner = inner[index]
    inner[place[-1]] = value
    with pytest.raises(BadCertificate):
        Certificate.from_bytes(msgpack.packb(changed), RUN)


def test_longer_bytes_and_another_form_are_refused() -> None:
    with pytest.raises(BadCertificate, match="more than"):
        Certificate.from_bytes(bytes(MAX_CERTIFICATE + 1), RUN)
    longer = fields()
    longer[4][0].append("more")
    with pytest.raises(BadCertificate, match="form"):
        Certificate.from_bytes(msgpack.packb(longer), RUN)
