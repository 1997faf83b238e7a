"""Frames: what is encoded is decoded, and any other bytes are refused without taking memory for them."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Annotated, ClassVar

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from prime_p2p.network.frames import MAX_HEADER, PREFIX_SIZE, FrameError, Message, Schema


class Point(Message):
    kind: ClassVar[str] = "point"
    x: int
    y: float


class Everything(Message):
    kind: ClassVar[str] = "everything"
    max_payload: ClassVar[int] = 1000
    name: Annotated[str, Field(max_length=20)]
    digest: bytes
    flags: list[bool]
    points: list[Point]
    weights: dict[str, float]
    nothing: None = None


class Empty(Message):
    kind: ClassVar[str] = "empty"


SCHEMA = Schema(Point, Everything, Empty)

points = st.builds(Point, x=st.integers(-(2**63), 2**64 - 1), y=st.floats(allow_nan=False))
messages = st.one_of(
    points,
    st.just(Empty()),
    st.builds(
        Everything,
        name=st.text(max_size=20).filter(lambda text: text.isprintable()),
        digest=st.binary(max_size=64),
        flags=st.lists(st.booleans(), max_size=5),
        points=st.lists(points, max_size=3),
        weights=st.dictionaries(st.text("abc", max_size=3), st.floats(allow_nan=False), max_size=3),
    ),
)


def decode(frame: bytes, schema: Schema = SCHEMA) -> tuple[Message, int]:
    header_length, payload_length = schema.decode_prefix(frame[:PREFIX_SIZE])
    return schema.decode(frame[PREFIX_SIZE : PREFIX_SIZE + header_length], payload_length), payload_length


def header(content: object) -> bytes:
    packed: bytes = msgpack.packb(content)
    return packed


@given(message=messages, data=st.data())
def test_what_is_encoded_is_decoded(message: Message, data: st.DataObject) -> None:
    payload_length = data.draw(st.integers(0, message.max_payload))
    assert decode(SCHEMA.encode(message, payload_length)) == (message, payload_length)


def decoded_or_reason(content: bytes) -> Message | str:
    try:
        return SCHEMA.decode(content)
    except FrameError as error:
        return str(error)


def is_one_short_line(reason: str) -> bool:
    return reason.isascii() and len(reason.splitlines()) == 1 and len(reason) < 300


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused_with_one_short_line(content: bytes) -> None:
    result = decoded_or_reason(content)
    assert isinstance(result, Message) or is_one_short_line(result)


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)
fields = st.dictionaries(
    st.sampled_from(["x", "y", "name", "digest", "flags", "points", "weights", "kind", "\n"]), json_like, max_size=8
)


@given(kind=st.sampled_from(["point", "everything", "empty", "other"]), values=fields)
def test_any_fields_are_a_message_or_refused_with_one_short_line(kind: str, values: dict[str, object]) -> None:
    result = decoded_or_reason(header([kind, values]))
    if isinstance(result, Message):
        again, _ = decode(SCHEMA.encode(result))
        assert header(again.model_dump()) == header(result.model_dump())
    else:
        assert is_one_short_line(result)


@given(st.binary(min_size=PREFIX_SIZE, max_size=PREFIX_SIZE))
def test_any_prefix_promises_no_more_than_the_limits_or_is_refused(prefix: bytes) -> None:
    try:
        header_length, payload_length = SCHEMA.decode_prefix(prefix)
    except FrameError:
        return
    assert 0 < header_length <= MAX_HEADER
    assert payload_length <= 1000


@pytest.mark.parametrize("header_length", [0, MAX_HEADER + 1, 2**32 - 1])
def test_a_header_that_is_empty_or_too_long_is_refused_before_it_is_read(header_length: int) -> None:
    with pytest.raises(FrameError, match=f"header of {header_length} bytes"):
        SCHEMA.decode_prefix(struct.pack(">IQ", header_length, 0))


def test_a_payload_longer_than_any_message_may_have_is_refused_before_it_is_read() -> None:
    with pytest.raises(FrameError, match="payload of 1001 bytes"):
        SCHEMA.decode_prefix(struct.pack(">IQ", 1, 1001))


def test_a_payload_longer_than_its_own_message_may_have_is_refused() -> None:
    with pytest.raises(FrameError, match="'empty' has 1 bytes, more than 0"):
        SCHEMA.decode(header(["empty", {}]), 1)
    with pytest.raises(FrameError, match="'empty' has 1 bytes, more than 0"):
        SCHEMA.encode(Empty(), 1)


def test_a_short_prefix_is_refused() -> None:
    with pytest.raises(FrameError, match="12 bytes, not 11"):
        SCHEMA.decode_prefix(bytes(11))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (header(["other", {}]), "'other' is no message"),
        (header(["point", {"x": 1}]), "bad y"),
        (header(["point", {"x": "1", "y": 1.0}]), "bad x"),
        (header(["point", {"x": True, "y": 1.0}]), "bad x"),
        (header(["point", {"x": 1, "y": 1.0, "z": 1}]), "bad z"),
        (header({"kind": "point"}), "not a kind and its fields"),
        (header(["point", {"x": 1, "y": 1.0}, 1]), "not a kind and its fields"),
        (header(["point", {1: 1}]), "not msgpack"),
        (header(["empty", {}]) + b"\0", "not msgpack"),
        (header(["empty", {}])[:-1], "not msgpack"),
        (b"\xc1", "not msgpack"),
        (header([b"empty", {}]), "not a kind and its fields"),
    ],
)
def test_a_header_that_is_no_message_of_the_schema_is_refused_with_its_reason(content: bytes, reason: str) -> None:
    with pytest.raises(FrameError, match=reason):
        SCHEMA.decode(content)


@pytest.mark.parametrize(
    "content",
    [
        b"\xdd\x00\x00\xff\xff" * 12_000,  # arrays in arrays, each with a claim of 65535 items
        b"\xdc\x04\x00" * 21_000,  # the same with the most items allowed
        b"\xdf\x00\x00\xff\xff" * 12_000,
        b"\x91" * 65_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdc\x03\xff" + (b"\xdc\x00\x40" + b"\x80" * 64) * 900,
    ],
    ids=["arrays", "large-arrays", "maps", "depth", "array", "text", "bytes", "many-maps"],
)
def test_a_hostile_header_takes_no_more_than_some_megabytes(content: bytes) -> None:
    assert len(content) <= MAX_HEADER
    tracemalloc.start()
    try:
        with pytest.raises(FrameError):
            SCHEMA.decode(content)
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()


def test_names_from_a_hostile_header_do_not_fill_the_log() -> None:
    reason = decoded_or_reason(header(["empty", {"\n" * 60_000: 1}]))
    assert isinstance(reason, str)
    assert is_one_short_line(reason)


def test_a_message_of_another_schema_is_not_encoded() -> None:
    with pytest.raises(FrameError, match="Point is no message of this stream"):
        Schema(Empty).encode(Point(x=1, y=1.0))


def test_a_header_too_long_is_not_encoded() -> None:
    with pytest.raises(FrameError, match="more than 65536"):
        SCHEMA.encode(Everything(name="", digest=bytes(MAX_HEADER), flags=[], points=[], weights={}))


def test_two_messages_of_a_kind_make_no_schema() -> None:
    with pytest.raises(ValueError, match="same kind"):
        Schema(Empty, Empty)


def test_a_message_with_a_sequence_that_does_not_survive_the_wire_cannot_be_defined() -> None:
    with pytest.raises(TypeError, match=r"Bad\.pairs must be a list"):
        type("Bad", (Message,), {"__annotations__": {"pairs": "list[tuple[int, int]]"}, "__module__": __name__})
