"""What peers, and whoever looks, say to each other about certificates, on streams of ``protocol(run)``.

The asker asks one thing after the other, and closes the stream.
"""

from __future__ import annotations

import struct
from typing import Annotated, ClassVar

from pydantic import Field

from prime_p2p.errors import PrimeError
from prime_p2p.network.frames import Message, Schema
from prime_p2p.network.version import stream_name
from prime_p2p.swarm.certificate import ID, MAX_CERTIFICATE
from prime_p2p.swarm.messages import Count

MOST_HELD = 1 << 16  # certificates that a peer tells of: the newest ones
MOST_STEPS = 256  # asked for at once
MOST_BYTES = 256 * 1024  # of certificates in one answer
_ENTRY = struct.Struct(f">Q{ID}s")
_LENGTH = struct.Struct(">I")


class AskHeld(Message):
    """Of which outer steps, from this one on, do you have certificates?"""

    kind: ClassVar[str] = "ask_held"
    since: Count


class Held(Message):
    """The outer step and the id of each certificate, in the payload."""

    kind: ClassVar[str] = "held"
    max_payload: ClassVar[int] = MOST_HELD * _ENTRY.size


class AskCertificates(Message):
    """Give me those of these outer steps."""

    kind: ClassVar[str] = "ask_certificates"
    steps: Annotated[list[Count], Field(min_length=1, max_length=MOST_STEPS)]


class Certificates(Message):
    """Those that are here, in the order asked for and as many as one answer may have, each preceded by its length."""

    kind: ClassVar[str] = "certificates"
    max_payload: ClassVar[int] = MOST_BYTES + MOST_STEPS * _LENGTH.size


CONTRIBUTIONS = Schema(AskHeld, Held, AskCertificates, Certificates)


class WrongAnswer(PrimeError):
    """A peer answered with something else than what it was asked for."""


def protocol(run: str) -> str:
    return stream_name(run, "contributions")


def pack_held(held: dict[int, bytes]) -> bytes:
    return b"".join(_ENTRY.pack(step, id_) for step, id_ in list(held.items())[-MOST_HELD:])


def unpack_held(payload: bytes) -> dict[int, bytes]:
    """Raises WrongAnswer where the payload is none."""
    if len(payload) % _ENTRY.size:
        raise WrongAnswer("a list of certificates of a length that none has")
    held: dict[int, bytes] = dict(_ENTRY.iter_unpack(payload))
    if max(held, default=0) >= 2**63:
        raise WrongAnswer("certificates of an outer step that none has")
    return held


def pack_certificates(bodies: list[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(body)) + body for body in bodies)


def unpack_certificates(payload: bytes) -> list[bytes]:
    """Raises WrongAnswer where the payload is none."""
    bodies: list[bytes] = []
    at = 0
    while at < len(payload):
        (size,) = _LENGTH.unpack_from(payload, at) if at + _LENGTH.size <= len(payload) else (0,)
        at += _LENGTH.size
        if not 0 < size <= min(MAX_CERTIFICATE, len(payload) - at) or len(bodies) == MOST_STEPS:
            raise WrongAnswer("certificates of a length that none has")
        bodies.append(payload[at : at + size])
        at += size
    return bodies
