"""A slice of the flat parameter vector in memory that all ranks of a peer share."""

from __future__ import annotations

import mmap
import os

import numpy as np

from prime_p2p.allreduce.codec import Float32

ELEMENTS = 1 << 24
"""Of a window, at most: enough that every rank has a part of most windows, and 64 MiB of memory."""


class Window:
    """float32 [elements] in memory without a name, which is gone with the last process that has it.

    ``path`` is where other processes of this user ``open`` it as long as this object lives.
    """

    def __init__(self, descriptor: int) -> None:
        """Takes over the descriptor of a file with the memory."""
        self._file = os.fdopen(descriptor, "r+b")
        self.path = f"/proc/{os.getpid()}/fd/{descriptor}"
        self.array: Float32 = np.frombuffer(mmap.mmap(descriptor, 0), np.float32)

    @classmethod
    def create(cls, elements: int) -> Window:
        """A new one, of zeros. Raises OSError where there is no memory for it."""
        descriptor = os.memfd_create("prime-p2p window")
        os.ftruncate(descriptor, elements * np.dtype(np.float32).itemsize)
        return cls(descriptor)

    @classmethod
    def open(cls, path: str) -> Window:
        """The window of another process. Raises OSError where that has ended."""
        return cls(os.open(path, os.O_RDWR))
