"""Certificates of groups that never met, signed as if they had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_p2p.network.identity import Identity
from prime_p2p.swarm.certificate import Certificate, ballot
from prime_p2p.swarm.groups import Group, Member

RUN = "demo"


def identity(number: int) -> Identity:
    return Identity(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32), Path("identity.key"))


ANNE, BOB, EVE = (identity(number) for number in (1, 2, 3))


def group(step: int, weights: dict[Identity, int], run: str = RUN) -> Group:
    members = tuple(Member(peer.peer_id, step, weight, 100.0) for peer, weight in weights.items())
    return Group(run, step, blake3(str(step).encode()).digest(), members)


def certify(group: Group, *signers: Identity, update: bytes = bytes(32)) -> Certificate:
    """Signed by these, whoever is in the group."""
    return Certificate(group, update, tuple(peer.sign(ballot(group.id, update)) for peer in signers))


def certificate(step: int, weights: dict[Identity, int], run: str = RUN) -> Certificate:
    return certify(group(step, weights, run), *weights)


def forge(certificate: Certificate) -> Certificate:
    """The same one, in which the first member has a thousand times its tokens."""
    first, *others = certificate.group.members
    members = (replace(first, weight=1000 * first.weight), *others)
    return replace(certificate, group=replace(certificate.group, members=members))
