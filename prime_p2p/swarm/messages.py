"""What peers say to each other about a round, over the control stream they keep open.

Small messages only: the bytes of a pseudo-gradient travel on data streams of their own (``allreduce.butterfly``).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from prime_p2p.network.frames import Message, Schema

Digest = Annotated[bytes, Field(min_length=32, max_length=32)]
PeerId = Annotated[str, Field(min_length=8, max_length=128, pattern=r"^[!-~]*$")]
Signature = Annotated[bytes, Field(min_length=64, max_length=64)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Terms = Annotated[bytes, Field(max_length=16)]
Bandwidth = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
MAX_MEMBERS = 256
PeerIds = Annotated[list[PeerId], Field(max_length=MAX_MEMBERS)]


class Ping(Message):
    """I am alive."""

    kind: ClassVar[str] = "ping"


class Leave(Message):
    """I am leaving the run; do not wait for me."""

    kind: ClassVar[str] = "leave"


# Gathering. ``step`` and ``digest`` name the state that the group is to start from.


class Join(Message):
    """To a leader: my pseudo-gradient is ready. ``nonce`` names this very offer: a group built from another one of mine
    is not valid any more. I cannot work with ``suspects``, and I expect ``awaited`` to take part too. ``terms`` name
    what I go by on the way to the next state: nobody goes there with me who goes by others."""

    kind: ClassVar[str] = "join"
    step: Count
    digest: Digest
    nonce: Count
    weight: Count
    bandwidth: Bandwidth
    terms: Terms
    suspects: PeerIds
    awaited: PeerIds


class Withdraw(Message):
    """To a leader: forget my join."""

    kind: ClassVar[str] = "withdraw"
    nonce: Count


class Open(Message):
    """From a leader to all it knows: I gather the group. ``hurry``: it closes soon, join with the steps you have."""

    kind: ClassVar[str] = "open"
    step: Count
    digest: Digest
    hurry: bool


class Redirect(Message):
    """To a join or an open: the group gathers at ``leader``, as far as I know; that may be you. I expect ``awaited``
    to take part."""

    kind: ClassVar[str] = "redirect"
    step: Count
    digest: Digest
    leader: PeerId
    awaited: PeerIds


class Begun(Message):
    """There is no group to be had with me: one of these ``members`` has begun. Where I am a member myself, it is the
    group that I am in; otherwise what I know of it, which may be nothing."""

    kind: ClassVar[str] = "begun"
    step: Count
    digest: Digest
    members: PeerIds


class Elsewhere(Message):
    """To a join or an open: I hold another state, this one, to whose lineage so many tokens were contributed."""

    kind: ClassVar[str] = "elsewhere"
    step: Count
    digest: Digest
    tokens: Count


class GroupMember(Message):
    """One line of a group, see ``groups.Member``."""

    kind: ClassVar[str] = "member"
    peer_id: PeerId
    nonce: Count
    weight: Count
    bandwidth: Bandwidth


class Begin(Message):
    """From a leader: this is the group, start to reduce."""

    kind: ClassVar[str] = "begin"
    step: Count
    digest: Digest
    members: Annotated[list[GroupMember], Field(min_length=1, max_length=MAX_MEMBERS)]


# Commit


class Abort(Message):
    """Nobody can ever commit this group: I have not voted for it and will not, or its votes differ. ``blamed`` are
    those whose data streams failed me; none where I stop for another reason."""

    kind: ClassVar[str] = "abort"
    group_id: Digest
    blamed: PeerIds


class Vote(Message):
    """My reduce is complete and gave an update with this digest; signed, see ``certificate.ballot``."""

    kind: ClassVar[str] = "vote"
    group_id: Digest
    update_digest: Digest
    signature: Signature


class Doubt(Message):
    """I miss a vote and count votes no more: I commit only if somebody says that it has committed.

    ``lost`` names every member that I know to be in doubt, each with the members that it has lost.
    """

    kind: ClassVar[str] = "doubt"
    group_id: Digest
    lost: Annotated[dict[PeerId, PeerIds], Field(max_length=MAX_MEMBERS)]


class Committed(Message):
    """I have committed this group: here are the ``signatures`` of all its members, in their order, under the vote for
    this update."""

    kind: ClassVar[str] = "committed"
    group_id: Digest
    update_digest: Digest
    signatures: Annotated[list[Signature], Field(min_length=1, max_length=MAX_MEMBERS)]


AboutState = Join | Open | Redirect | Begun
AboutGroup = Abort | Vote | Doubt | Committed

CONTROL = Schema(
    Ping, Leave, Join, Withdraw, Open, Redirect, Begun, Elsewhere, Begin, Abort, Vote, Doubt, Committed
)  # fmt: skip
