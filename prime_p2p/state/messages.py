"""What peers say to each other about state, on streams of ``protocol(run)``.

A stream begins with one question. Those about a description, an update, offers or hashes get one answer; ``AskHave``
opens a session in which pieces are asked for, as many at a time as the asker likes, and come in that order.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar

from blake3 import blake3
from pydantic import Field

from prime_p2p.errors import PrimeError
from prime_p2p.network.frames import Message, Schema
from prime_p2p.network.version import stream_name
from prime_p2p.outer.digest import PIECE

MAX_DESCRIPTION = 64 * 1024
MAX_HASHES = 64 * 2**20  # bytes of piece hashes in a snapshot: enough for 2**40 parameters
MAX_HISTORY = 256  # digests of earlier states that a peer tells of
Digest = Annotated[bytes, Field(min_length=32, max_length=32)]
Count = Annotated[int, Field(ge=0, lt=2**63)]


class AskDescription(Message):
    """What must all peers of the run agree on?"""

    kind: ClassVar[str] = "ask_description"


class Description(Message):
    """The answer, as JSON in the payload."""

    kind: ClassVar[str] = "description"
    max_payload: ClassVar[int] = MAX_DESCRIPTION


class AskUpdate(Message):
    """I hold this state; which update leads on from it?"""

    kind: ClassVar[str] = "ask_update"
    step: Count
    digest: Digest


class Update(Message):
    """This one, the first of ``ahead`` that lead to our state; its scales and values follow as parts.

    ``bits`` are those of its levels: 8 or 4.
    """

    kind: ClassVar[str] = "update"
    step: Count
    before: Digest
    after: Digest
    tokens: Count
    bits: Annotated[int, Field(ge=4, le=8, multiple_of=4)]
    ahead: Annotated[int, Field(ge=1, le=2**32)]


class AskOffers(Message):
    """Which snapshots do you give, and which states do you know?"""

    kind: ClassVar[str] = "ask_offers"


class Offers(Message):
    """Digests of snapshots with the outer step of each, and of the states that led to ours.

    ``history`` has the digest of every outer step from ``first`` on, ours last; it is empty at a peer without a state.
    """

    kind: ClassVar[str] = "offers"
    snapshots: Annotated[list[Digest], Field(max_length=16)]
    steps: Annotated[list[Count], Field(max_length=16)]
    first: Count
    history: Annotated[list[Digest], Field(max_length=MAX_HISTORY)]


class AskHashes(Message):
    """Of which pieces is this state made?"""

    kind: ClassVar[str] = "ask_hashes"
    digest: Digest


class Hashes(Message):
    """The state's numbers; the payload is the hash of every piece."""

    kind: ClassVar[str] = "hashes"
    max_payload: ClassVar[int] = MAX_HASHES
    step: Count
    tokens: Count
    n: Count


class AskHave(Message):
    """Which pieces of this state can you give? Those, or some of them, are asked for next."""

    kind: ClassVar[str] = "ask_have"
    digest: Digest


class Have(Message):
    """One bit for each piece in the payload, the first one in the highest bit; no payload means all."""

    kind: ClassVar[str] = "have"
    max_payload: ClassVar[int] = MAX_HASHES // 256 + 1


class AskPiece(Message):
    """Send me this piece of the state that this session is about."""

    kind: ClassVar[str] = "ask_piece"
    index: Count


class Part(Message):
    """The next bytes of what was asked for."""

    kind: ClassVar[str] = "part"
    max_payload: ClassVar[int] = PIECE


class NotHere(Message):
    """We do not have, or have no more, what was asked for."""

    kind: ClassVar[str] = "not_here"


class Busy(Message):
    """We serve as many as we may; come again later."""

    kind: ClassVar[str] = "busy"


STATE = Schema(
    *(AskDescription, Description, AskUpdate, Update, AskOffers, Offers, AskHashes, Hashes),
    *(AskHave, Have, AskPiece, Part, NotHere, Busy),
)


class TransferError(PrimeError):
    """A peer did not give what it was asked for."""


class WrongBytes(TransferError):
    """A peer gave something else than what it was asked for."""


def protocol(run: str) -> str:
    return stream_name(run, "state")


def read_description(peer_id: str, payload: bytes) -> dict[str, Any]:
    """The payload of a description that a peer sent. Raises WrongBytes where it is none."""
    try:
        description = json.loads(payload)
    except (ValueError, RecursionError):
        description = None
    if not isinstance(description, dict):
        raise WrongBytes(f"{peer_id} sent a description that is no JSON object")
    return description


def description_hash(description: dict[str, Any]) -> bytes:
    """16 bytes that are equal where two descriptions are."""
    return blake3(json.dumps(description, sort_keys=True).encode()).digest(16)
