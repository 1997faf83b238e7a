"""The frames of a stream: a small typed header and a payload of raw bytes.

    u32 header length | u64 payload length | header | payload          (big endian)

The header is a msgpack array ``[kind, {field: value}]``. A frame is refused before anything is allocated for it when
its header is longer than `MAX_HEADER` or its payload longer than the message type allows.
"""

import struct
from collections.abc import Iterator
from typing import Any, ClassVar, get_args, get_origin

import msgpack
from pydantic import BaseModel, ConfigDict, ValidationError

from prime_p2p.errors import PrimeError

MAX_HEADER = 64 * 1024
MAX_ITEMS = 1024  # of one array or map of a header: msgpack allocates what an array claims before it has seen it
_PREFIX = struct.Struct(">IQ")
PREFIX_SIZE = _PREFIX.size


class FrameError(PrimeError):
    """Bytes that are not a frame of the schema they were read with."""


class Message(BaseModel):
    """The base of every message: a frozen set of typed fields and a name on the wire.

    Fields are what msgpack carries: None, bool, int, float, str, bytes, lists, dicts with str keys, and models of
    these. Limits belong to the fields (``Field(ge=0, max_length=32)``).

    Class attributes:
        kind: name of the message on the wire, unique in its schema.
        max_payload: most bytes of payload that may follow the header.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    kind: ClassVar[str]
    max_payload: ClassVar[int] = 0

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for name, field in cls.model_fields.items():
            if any(part in (tuple, set, frozenset) for part in _parts(field.annotation)):
                raise TypeError(f"{cls.__name__}.{name} must be a list: msgpack knows no other sequence")


def _parts(annotation: Any) -> Iterator[Any]:
    yield get_origin(annotation) or annotation
    for argument in get_args(annotation):
        yield from _parts(argument)


class Schema:
    """The messages that may appear on a stream."""

    def __init__(self, *messages: type[Message]) -> None:
        self._messages = {message.kind: message for message in messages}
        if len(self._messages) != len(messages):
            raise ValueError("two messages of a schema have the same kind")
        self.max_payload = max((message.max_payload for message in messages), default=0)

    def encode(self, message: Message, payload_length: int = 0) -> bytes:
        """Return prefix and header of a frame, to be followed by `payload_length` bytes.

        Raises:
            FrameError: the message is not of this schema, its header too long or its payload longer than it may be.
        """
        if self._messages.get(message.kind) is not type(message):
            raise FrameError(f"{type(message).__name__} is no message of this stream")
        _check_payload(type(message), payload_length)
        header = msgpack.packb([message.kind, message.model_dump()])
        if len(header) > MAX_HEADER:
            raise FrameError(f"header of {message.kind!r} has {len(header)} bytes, more than {MAX_HEADER}")
        return _PREFIX.pack(len(header), payload_length) + header

    def decode_prefix(self, prefix: bytes | bytearray | memoryview) -> tuple[int, int]:
        """Return (header length, payload length) of the `PREFIX_SIZE` bytes a frame begins with.

        Raises:
            FrameError: one of them is more than any message of this schema may have.
        """
        if len(prefix) != PREFIX_SIZE:
            raise FrameError(f"a frame begins with {PREFIX_SIZE} bytes, not {len(prefix)}")
        header_length, payload_length = _PREFIX.unpack(prefix)
        if not 0 < header_length <= MAX_HEADER:
            raise FrameError(f"header of {header_length} bytes, not 1 to {MAX_HEADER}")
        if payload_length > self.max_payload:
            raise FrameError(f"payload of {payload_length} bytes, more than {self.max_payload}")
        return header_length, payload_length

    def decode(self, header: bytes | bytearray | memoryview, payload_length: int = 0) -> Message:
        """Return the message of a header.

        Raises:
            FrameError: the header is no message of this schema, or the payload longer than that message allows.
        """
        try:
            unpacked = msgpack.unpackb(header, strict_map_key=True, max_array_len=MAX_ITEMS, max_map_len=MAX_ITEMS)
        except (ValueError, msgpack.UnpackException) as error:
            raise FrameError(f"header is not msgpack: {one_line(error)}") from None
        match unpacked:
            case [str(kind), dict(fields)] if kind in self._messages:
                message = self._messages[kind]
            case [str(kind), dict()]:
                raise FrameError(f"{one_line(kind)!r} is no message of this stream")
            case _:
                raise FrameError("header is not a kind and its fields")
        _check_payload(message, payload_length)
        try:
            return message.model_validate(fields)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False, include_context=False)[0]
            place = ".".join(one_line(part) for part in first["loc"])
            raise FrameError(f"{kind!r} with a bad {place}: {one_line(first['msg'])}") from None


def _check_payload(message: type[Message], length: int) -> None:
    if length > message.max_payload:
        raise FrameError(f"payload of {message.kind!r} has {length} bytes, more than {message.max_payload}")


def one_line(text: object, longest: int = 80) -> str:
    """Foreign text, fit for one short line: its first characters, in ASCII and without control characters."""
    return ascii(str(text)[:longest])[1:-1]
