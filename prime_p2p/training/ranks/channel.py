"""Messages between rank 0 of a peer and each of its other ranks: plain values and tensors over a socket; no pickle."""

from __future__ import annotations

import json
import queue
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import torch as safetensors

SEND_DEADLINE = 60  # seconds for the other end to make room for what is sent

_LENGTHS = struct.Struct("<IQ")


class Ended(Exception):
    """The other end is gone."""


@dataclass(frozen=True)
class Message:
    """What ``Channel.send`` was given; its tensors are on the CPU."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


class Channel:
    """One end of a connected socket.

    A thread reads all the time, so that the end of the other process is noticed whatever this one is doing:
    ``on_end`` is called in it then, once.
    """

    def __init__(self, connected: socket.socket, on_end: Callable[[], object]) -> None:
        """Takes the socket over."""
        deadline = struct.pack("ll", SEND_DEADLINE, 0)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, deadline)
        self.last: Message | None = None
        """The last message that has come, received or not."""
        self._socket = connected
        self._on_end = on_end
        self._received: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="rank channel", daemon=True)
        self._reader.start()

    def send(self, name: str, tensors: Mapping[str, torch.Tensor] | None = None, **values: Any) -> None:
        """Send a message with tensors from the CPU and values that JSON carries.

        Raises Ended where nobody is there to read it, also where nobody has read for a minute.
        """
        head = json.dumps([name, values]).encode()
        body = safetensors.save({key: tensor.contiguous() for key, tensor in (tensors or {}).items()})
        try:
            self._socket.sendall(_LENGTHS.pack(len(head), len(body)) + head + body)
        except OSError:
            raise Ended from None

    def receive(self, timeout: float | None = None) -> Message:
        """The next message. Raises Ended, and TimeoutError after ``timeout`` seconds."""
        try:
            message = self._received.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None
        if message is None:
            self._received.put(None)  # for whoever asks again
            raise Ended
        return message

    def close(self) -> None:
        """End the connection at both ends; what has come before can still be received there."""
        with suppress(OSError):  # the other end was faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._socket.close()

    def _read(self) -> None:
        try:
            with self._socket.makefile("rb") as file:
                while len(lengths := file.read(_LENGTHS.size)) == _LENGTHS.size:
                    head_length, body_length = _LENGTHS.unpack(lengths)
                    name, values = json.loads(file.read(head_length))
                    self.last = Message(name, values, safetensors.load(file.read(body_length)))
                    self._received.put(self.last)
        except (OSError, ValueError):  # a reset, or a message that was cut
            pass
        self._received.put(None)
        self._on_end()
