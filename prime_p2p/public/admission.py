"""Who may take part in a public run, by the rule in its manifest, and the invitations that one kind of rule asks for.

An invitation is a private key that the author has signed for. Its holder signs its own peer id with it and shows the
two signatures, never the key: who sees them cannot be let in by them as another peer.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgpack
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prime_p2p.errors import BadInput
from prime_p2p.network.identity import Identity, is_signed_by, verify

MAX_PEERS = 1024  # of one list of a manifest
MAX_CREDENTIAL = 256  # bytes of what an invited peer shows
_INVITED = b"prime-p2p invitation 1\0"
_HOLDER = b"prime-p2p invited peer 1\0"
_PREFIX = "prime-invitation-"

PeerId = Annotated[str, Field(min_length=8, max_length=64)]


class Admission(BaseModel):
    """``open``: anybody; ``allow``: the ``peers``; ``token``: whoever holds an invitation. Never who is ``banned``."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    rule: Literal["open", "allow", "token"] = "open"
    peers: Annotated[list[PeerId], Field(max_length=MAX_PEERS)] = []
    banned: Annotated[list[PeerId], Field(max_length=MAX_PEERS)] = []


class _Credential(BaseModel):
    """What an invited peer shows: the public half of its invitation, the author's word on it, its word on the peer."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    key: Annotated[bytes, Field(min_length=32, max_length=32)]
    until: Annotated[float, Field(gt=0, lt=2**53)]
    by_author: Annotated[bytes, Field(min_length=64, max_length=64)]
    by_key: Annotated[bytes, Field(min_length=64, max_length=64)]


def _for_author(run: str, key: bytes, until: float) -> bytes:
    return _INVITED + msgpack.packb([run, key, until])


def _for_holder(run: str, peer_id: str) -> bytes:
    return _HOLDER + msgpack.packb([run, peer_id])


@dataclass(frozen=True)
class Invitation:
    """The right to take part in ``run`` until a time (unix seconds). It is a secret: who has it can use it."""

    run: str
    until: float
    key: bytes
    by_author: bytes

    @classmethod
    def make(cls, run: str, until: float, author: Identity) -> Invitation:
        """A new one, signed by the author of the run."""
        key = Ed25519PrivateKey.generate()
        public = key.public_key().public_bytes_raw()
        return cls(run, until, key.private_bytes_raw(), author.sign(_for_author(run, public, until)))

    def __repr__(self) -> str:
        return f"Invitation({self.run!r}, until={self.until!r})"  # the rest is nobody's business

    def to_text(self) -> str:
        """A word to hand to whoever is invited."""
        packed = msgpack.packb([self.run, self.until, self.key, self.by_author])
        return _PREFIX + base64.urlsafe_b64encode(packed).decode().rstrip("=")

    @classmethod
    def from_text(cls, text: str) -> Invitation:
        """Read what ``to_text`` gave. Raises BadInput, which does not repeat the text."""
        text = "".join(text.split())
        wrong = BadInput(f"this is no invitation: one begins with {_PREFIX} and is pasted whole")
        if not text.startswith(_PREFIX) or len(text) > 1024:
            raise wrong
        encoded = text.removeprefix(_PREFIX)
        try:
            fields = msgpack.unpackb(
                base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
            )
        except (binascii.Error, ValueError, msgpack.UnpackException):
            raise wrong from None
        match fields:
            case [str(run), float(until), bytes(key), bytes(by_author)] if len(key) == 32 and len(by_author) == 64:
                return cls(run, until, key, by_author)
        raise wrong

    def credential(self, peer_id: str) -> bytes:
        """What the peer of this id shows to the others."""
        key = Ed25519PrivateKey.from_private_bytes(self.key)
        shown = _Credential(
            key=key.public_key().public_bytes_raw(),
            until=self.until,
            by_author=self.by_author,
            by_key=key.sign(_for_holder(self.run, peer_id)),
        )
        packed: bytes = msgpack.packb(shown.model_dump())
        return packed


def invited_until(credential: bytes, run: str, author: str, peer_id: str) -> float | None:
    """Until when (unix seconds) a peer is invited by what it shows; None where that is nothing of worth.

    ``author`` is the peer id of the run's author.
    """
    shown = _read(credential)
    if shown is None or not is_signed_by(shown.key, _for_holder(run, peer_id), shown.by_key):
        return None
    return shown.until if verify(author, _for_author(run, shown.key, shown.until), shown.by_author) else None


def _read(credential: bytes) -> _Credential | None:
    if len(credential) > MAX_CREDENTIAL:
        return None
    try:
        fields: Any = msgpack.unpackb(credential, strict_map_key=True)
        return _Credential.model_validate(fields)
    except (ValueError, TypeError, msgpack.UnpackException, ValidationError):
        return None
