"""What a watcher asks a peer, and what it is told: lines of JSON about outer steps, and where the peer is.

All of it comes from strangers. Whatever is not exactly of this form is refused, and texts are printable.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from prime_p2p.monitor.events import State
from prime_p2p.monitor.metrics import PhaseSeconds, RoundMetrics
from prime_p2p.network.frames import FrameError, Message, Schema
from prime_p2p.network.version import stream_name
from prime_p2p.swarm.messages import MAX_MEMBERS, Count, PeerId

MOST_LINES = 64  # in one answer
MOST_BYTES = 64 * 1024  # of its lines together, unless it is a single one
LONGEST_LINE = 64 * 1024
MOST_PACKED = MOST_UNPACKED = 2 * MOST_BYTES

LARGEST_LOSS = 1e30
Loss = Annotated[float, Field(ge=-LARGEST_LOSS, le=LARGEST_LOSS, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False), AfterValidator(lambda value: round(value, 6))]
"""To the microsecond, so that what is divided by some that are not 0 stays finite."""


class AskNews(Message):
    """What is there that I do not know? ``after`` is the number of the last line I have of this ``session``."""

    kind: ClassVar[str] = "ask"
    session: Annotated[bytes, Field(max_length=16)]
    after: Count


class NewsLines(Message):
    """The lines after the one that was asked for, or the oldest there are, compressed; ``last`` is the number of the
    newest of them. ``session`` is another one after the peer has been started anew, whose lines count from 1."""

    kind: ClassVar[str] = "news"
    max_payload: ClassVar[int] = MOST_PACKED
    session: Annotated[bytes, Field(max_length=16)]
    last: Count


NEWS = Schema(AskNews, NewsLines)


def protocol(run: str) -> str:
    """The name of the streams of the news of a run."""
    return stream_name(run, "news")


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Now(_Told):
    """Where a peer is. ``loss`` is that of its last inner step."""

    outer_step: Count
    inner_step: Count
    inner_steps: Count
    loss: Loss | None = None
    tokens_per_second: Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)] = 0.0
    group_size: Annotated[int, Field(ge=0, le=MAX_MEMBERS)] = 0
    state: State


class _Phases(_Told):
    inner: Seconds = 0.0
    gather: Seconds = 0.0
    reduce: Seconds = 0.0
    commit: Seconds = 0.0
    apply: Seconds = 0.0
    total: Seconds = 0.0


class _Step(_Told):
    """An outer step as a peer measured it, see ``RoundMetrics``."""

    outer_step: Count
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    group: Annotated[list[PeerId], Field(max_length=MAX_MEMBERS)]
    weights: Annotated[list[Count], Field(max_length=MAX_MEMBERS)]
    attempts: Annotated[int, Field(ge=0, le=10**6)]
    train_loss: Loss | None
    tokens: Count
    bytes_sent: Count
    bytes_received: Count
    seconds: _Phases
    val_loss: Loss | None = None
    replayed: Count = 0
    snapshots: Count = 0
    state_bytes: Count = 0
    given_snapshots: Count = 0
    given_bytes: Count = 0
    dropped: Annotated[
        dict[Annotated[str, Field(max_length=32, pattern=r"^[a-z_ -]*$")], Count], Field(max_length=32)
    ] = {}

    def metrics(self) -> RoundMetrics:
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return RoundMetrics(
            **fields
            | {
                "group": tuple(self.group),
                "weights": tuple(self.weights),
                "seconds": PhaseSeconds(**self.seconds.model_dump()),
            }
        )


class Missed(_Told):
    """A round came to no outer step for the peer."""

    outer_step: Count


News = Now | RoundMetrics | Missed


def packed(lines: Sequence[bytes]) -> bytes:
    """Lines as they travel."""
    return zlib.compress(b"\n".join(lines), 1)


def line(kind: str, fields: dict[str, Any]) -> bytes:
    """One line."""
    return json.dumps({"event": kind} | fields, allow_nan=False, separators=(",", ":")).encode()


def read(payload: bytes) -> list[News]:
    """What the lines of an answer say.

    Raises:
        FrameError: they are not of the form they must have.
    """
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(payload, MOST_UNPACKED)
    except zlib.error:
        raise FrameError("news that cannot be decompressed") from None
    if not unpacking.eof:
        raise FrameError(f"news of more than {MOST_UNPACKED} bytes, or cut")
    lines = text.split(b"\n") if text else []
    if len(lines) > MOST_LINES:
        raise FrameError(f"{len(lines)} lines of news, more than {MOST_LINES}")
    return [_read_line(one) for one in lines]


def _read_line(text: bytes) -> News:
    try:
        fields = json.loads(text)
        match fields.pop("event"):
            case "now":
                return Now.model_validate(fields)
            case "outer_step":
                return _Step.model_validate(fields).metrics()
            case "missed":
                return Missed.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        raise FrameError(f"news with a bad {first['loc'][0] if first['loc'] else 'form'}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise FrameError("news that are no line of ours")
