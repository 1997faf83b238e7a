"""The certificate of a commit: the votes of all members of a group for one update, each signed by its member.

A member commits when it has the same vote from every member. So whoever has all signatures has what a member needs to
commit: nobody outside can make one up, and no member can change what another one's tokens were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import msgpack
from blake3 import blake3
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prime_p2p.network.frames import MAX_ITEMS
from prime_p2p.network.identity import verify
from prime_p2p.swarm.groups import Group, Member
from prime_p2p.swarm.messages import MAX_MEMBERS, Bandwidth, Committed, Count, Digest, PeerId, Signature

MAX_CERTIFICATE = 64 * 1024  # bytes; one of `MAX_MEMBERS` has 40 kB
ID = 16  # bytes
_DOMAIN = b"prime-p2p contribution 1\0"


class BadCertificate(ValueError):
    """Bytes that are no certificate of the run, or one that not all of its members have signed."""


def ballot(group_id: bytes, update_digest: bytes) -> bytes:
    """The bytes that a member signs with its vote. The id of the group binds run, state, members and their tokens."""
    return _DOMAIN + group_id + update_digest


class _Line(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    peer_id: PeerId
    nonce: Count
    weight: Count
    bandwidth: Bandwidth
    signature: Signature


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    run: str
    step: Count
    digest: Digest
    update_digest: Digest
    members: Annotated[list[_Line], Field(min_length=1, max_length=MAX_MEMBERS)]


@dataclass(frozen=True)
class Certificate:
    """``signatures`` are those of the members of ``group``, in their order, under the vote for ``update_digest``."""

    group: Group
    update_digest: bytes
    signatures: tuple[bytes, ...]

    @classmethod
    def of(cls, group: Group, votes: Mapping[str, tuple[bytes, bytes]]) -> Certificate | None:
        """That of ``votes`` (peer id -> update digest, signature); None where one is missing or they differ."""
        found = [votes[peer] for peer in group.peer_ids if peer in votes]
        if len(found) < len(group.members) or len({digest for digest, _ in found}) > 1:
            return None
        return cls(group, found[0][0], tuple(signature for _, signature in found))

    @property
    def told(self) -> Committed:
        """It, to the other members."""
        return Committed(group_id=self.group.id, update_digest=self.update_digest, signatures=list(self.signatures))

    @cached_property
    def id(self) -> bytes:
        """16 bytes that name what was signed, however it was signed."""
        return blake3(ballot(self.group.id, self.update_digest)).digest(ID)

    def to_bytes(self) -> bytes:
        group = self.group
        lines = [
            (member.peer_id, member.nonce, member.weight, member.bandwidth, signature)
            for member, signature in zip(group.members, self.signatures, strict=True)
        ]
        packed: bytes = msgpack.packb((group.run, group.step, group.digest, self.update_digest, lines))
        return packed

    @classmethod
    def from_bytes(cls, data: bytes, run: str) -> Certificate:
        """Read one, whose signatures are still to be checked.

        Raises BadCertificate where the bytes are none of a group of this run that can have committed.
        """
        body = _read(data)
        if body.run != run:
            raise BadCertificate("of another run")
        members = tuple(Member(line.peer_id, line.nonce, line.weight, line.bandwidth) for line in body.members)
        group = Group(run, body.step, body.digest, members)
        if len(set(group.peer_ids)) < len(members) or group.total_weight == 0:
            raise BadCertificate("a member twice, or no tokens at all")
        certificate = cls(group, body.update_digest, tuple(line.signature for line in body.members))
        if certificate.to_bytes() != data:
            raise BadCertificate("not in the one form that it has")
        return certificate

    def check(self) -> None:
        """Raises BadCertificate where a signature is not that of its member; a millisecond for some ten of them."""
        if len(self.signatures) != len(self.group.members):
            raise BadCertificate("not as many signatures as members")
        signed = ballot(self.group.id, self.update_digest)
        for peer, signature in zip(self.group.peer_ids, self.signatures, strict=True):
            if not verify(peer, signed, signature):
                raise BadCertificate(f"not signed by its member {peer}")


def _read(data: bytes) -> _Body:
    if len(data) > MAX_CERTIFICATE:
        raise BadCertificate(f"{len(data)} bytes, more than {MAX_CERTIFICATE}")
    try:
        unpacked = msgpack.unpackb(data, max_array_len=MAX_ITEMS, max_map_len=0)
    except (ValueError, TypeError, msgpack.UnpackException):
        raise BadCertificate("not msgpack") from None
    match unpacked:
        case [run, step, digest, update_digest, list(lines)] if all(isinstance(line, list) for line in lines):
            members = [dict(zip(_Line.model_fields, line, strict=False)) for line in lines]
            fields = {"run": run, "step": step, "digest": digest, "update_digest": update_digest, "members": members}
        case _:
            raise BadCertificate("not a certificate")
    try:
        return _Body.model_validate(fields)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors(include_input=False, include_url=False)[0]["loc"])
        raise BadCertificate(f"bad {place}") from None
