"""A snapshot in a file, piece by piece: whole at those who give it, growing at those who fetch it."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from blake3 import blake3

from prime_p2p.allreduce.codec import Float32
from prime_p2p.outer.digest import PIECE, digest_of_pieces
from prime_p2p.outer.state import OuterState

Arrays = tuple[Float32, Float32]  # anchor and momentum

File = TypeVar("File", bound="PieceFile")


def pieces_of(n: int) -> int:
    """How many pieces a state of n parameters has."""
    return 2 * -(-4 * n // PIECE)


@dataclass(frozen=True)
class Contents:
    """What a snapshot is made of: the state's numbers and the hash of every piece. The digest names all of it."""

    step: int
    tokens: int
    n: int
    hashes: Sequence[bytes]

    @property
    def digest(self) -> bytes:
        return digest_of_pieces(self.step, self.tokens, self.n, self.hashes)

    @property
    def fits(self) -> bool:
        """Whether there are as many hashes as a state of n parameters has pieces."""
        return len(self.hashes) == pieces_of(self.n)

    def span(self, index: int) -> tuple[int, int]:
        """First byte and length of a piece in a file that holds the anchor and then the momentum."""
        array_bytes = 4 * self.n
        array, piece = divmod(index, len(self.hashes) // 2)
        start = piece * PIECE
        return array * array_bytes + start, min(PIECE, array_bytes - start)


class PieceFile:
    """The file of one snapshot; ``have`` are the pieces that are in it. It is closed with this object.

    Reading and writing may be done in any thread. What is stored is in the system's cache of files, not in this
    process; a file that was torn by a crash is found out by the hashes.
    """

    def __init__(self, descriptor: int, contents: Contents) -> None:
        self.contents = contents
        self.digest = contents.digest
        self.have: set[int] = set()
        self._descriptor = descriptor
        weakref.finalize(self, _close, descriptor).atexit = False

    @classmethod
    def nameless(cls: type[File], directory: Path, contents: Contents) -> File:
        """A new file that is gone with this process, however sudden its end. Raises OSError."""
        with tempfile.TemporaryFile(dir=directory) as file:
            return cls(os.dup(file.fileno()), contents)

    @property
    def missing(self) -> list[int]:
        return [index for index in range(len(self.contents.hashes)) if index not in self.have]

    @property
    def given(self) -> Set[int]:
        """The pieces that others may ask for."""
        return self.have

    def gives(self, index: int) -> bool:
        """Whether this is one of them."""
        return index in self.have

    def length_of(self, index: int) -> int:
        """Bytes of a piece."""
        return self.contents.span(index)[1]

    def read_into(self, buffer: memoryview, index: int) -> memoryview:
        """Read a piece to the front of ``buffer``, and return that part of it. Raises OSError."""
        return self._read_into(buffer, index, flags=0)

    def read_at_once(self, buffer: memoryview, index: int) -> memoryview | None:
        """The same, where no disk has to be waited for; None otherwise."""
        try:
            return self._read_into(buffer, index, flags=os.RWF_NOWAIT) if index in self.have else None
        except OSError:  # not in the cache, or not a file system that can say so
            return None

    def _read_into(self, buffer: memoryview, index: int, flags: int) -> memoryview:
        start, length = self.contents.span(index)
        piece, read = buffer[:length], 0
        while read < length:
            count = os.preadv(self._descriptor, [piece[read:]], start + read, flags)
            if not count:
                raise OSError("the file of a snapshot is shorter than it was")
            read += count
        return piece

    def write(self, index: int, data: memoryview) -> None:
        """Store a piece that is known to be right. Raises OSError."""
        start, length = self.contents.span(index)
        assert len(data) == length
        while data:
            written = os.pwrite(self._descriptor, data, start)
            start, data = start + written, data[written:]

    def load_into(self, anchor: Float32, momentum: Float32) -> None:
        """The anchor and the momentum of a file that has all its pieces. Raises OSError."""
        for index in range(len(self.contents.hashes)):
            self.read_into(part_of((anchor, momentum), self.contents, index), index)


def _close(descriptor: int) -> None:
    """Close a file in a thread: the system takes a while to free what a large one without a name holds."""
    threading.Thread(target=os.close, args=(descriptor,), name="close snapshot", daemon=True).start()


class Growing(PieceFile):
    """The arrays of a state that is being fetched, and the file that its pieces are kept in.

    A piece is received where it belongs in the arrays, its ``place``, so that nothing is copied. Where that is taken it
    comes in memory of its own and gets there in the end. Places are given, and pieces accepted, in one thread.
    """

    def __init__(self, descriptor: int, contents: Contents, arrays: Arrays | None = None) -> None:
        super().__init__(descriptor, contents)
        self._arrays = arrays or (np.empty(contents.n, np.float32), np.empty(contents.n, np.float32))
        self._taken: set[int] = set()  # places that somebody receives into, or that have their piece
        self._filled: set[int] = set()  # places that have their piece
        self._apart: dict[int, memoryview] = {}  # right pieces that are not in their place
        self._lock = threading.Lock()  # of the arrays' being here, for those who read pieces from them

    @property
    def given(self) -> Set[int]:
        return self.have | self._filled

    def gives(self, index: int) -> bool:
        return index in self.have or index in self._filled

    def read_into(self, buffer: memoryview, index: int) -> memoryview:
        with self._lock:
            if index in self._filled:
                piece = buffer[: self.length_of(index)]
                piece[:] = part_of(self._arrays, self.contents, index)
                return piece
        if index not in self.have:
            raise OSError("the download is over, and this piece of it was not kept")
        return super().read_into(buffer, index)

    @classmethod
    def at(cls, path: Path, contents: Contents, arrays: Arrays | None = None) -> Growing:
        """The file of this name, made where there is none; ``have`` is what its bytes prove. ``arrays`` are used for
        the state; whatever is in them is lost. Raises OSError."""
        known = path.exists()
        found = cls(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), contents, arrays)
        size = 8 * contents.n
        if os.fstat(found._descriptor).st_size != size:
            os.truncate(found._descriptor, 0)
            os.truncate(found._descriptor, size)
        elif known:
            found.have = {index for index in range(len(contents.hashes)) if found._load(index)}
            found._taken, found._filled = set(found.have), set(found.have)
        return found

    def _load(self, index: int) -> bool:
        return self.proves(index, super().read_into(part_of(self._arrays, self.contents, index), index))

    def place(self, index: int) -> memoryview | None:
        """Where to receive a piece; it is the caller's until ``give_back``, or for good. None where it is taken."""
        if index in self._taken:
            return None
        self._taken.add(index)
        return part_of(self._arrays, self.contents, index)

    def give_back(self, index: int) -> None:
        """Nobody receives into this place any more, and what is there is not the piece."""
        self._taken.discard(index)

    def proves(self, index: int, data: memoryview) -> bool:
        """Whether this is the piece."""
        return blake3(data).digest() == self.contents.hashes[index]

    def accept(self, index: int, data: memoryview, in_place: bool) -> None:
        """Take a piece that is the right one."""
        if in_place:
            self._filled.add(index)
        else:
            self._apart[index] = data

    @property
    def lacking(self) -> list[int]:
        """The pieces that the state lacks."""
        return [i for i in range(len(self.contents.hashes)) if i not in self._filled and i not in self._apart]

    def state(self, threads: int = 1) -> OuterState:
        """The state that lacks nothing, once nobody receives into a place any more; it takes the arrays over."""
        for index, data in self._apart.items():
            part_of(self._arrays, self.contents, index)[:] = data
        with self._lock:
            self._apart.clear()
            self._filled.clear()
            arrays, self._arrays = self._arrays, (np.empty(0, np.float32), np.empty(0, np.float32))
        return OuterState(*arrays, self.contents.step, self.contents.tokens, threads, self.contents.hashes)

    def going_on(self, state: OuterState) -> Copy:
        """The same file, to be completed from the state that was made here. Raises OSError."""
        copy = Copy(os.dup(self._descriptor), self.contents)
        copy.have = set(self.have)
        copy.begin(state)
        return copy


class Copy(PieceFile):
    """The file that a state is being written to, while others ask for its pieces already."""

    def __init__(self, descriptor: int, contents: Contents) -> None:
        super().__init__(descriptor, contents)
        self._state: OuterState | None = None

    @classmethod
    def of(cls, directory: Path, state: OuterState, contents: Contents) -> Copy:
        """A file without a piece; ``contents`` are those of the state now. Raises OSError."""
        copy = cls.nameless(directory, contents)
        copy.begin(state)
        return copy

    def begin(self, state: OuterState) -> None:
        """Take what the file lacks from this state from now on."""
        self._state = None if len(self.have) == len(self.contents.hashes) else state

    @property
    def given(self) -> Set[int]:
        return self.have if self._state is None else set(range(len(self.contents.hashes)))

    def gives(self, index: int) -> bool:
        return index in self.have or (self._state is not None and index < len(self.contents.hashes))

    def take(self, index: int) -> bool:
        """Have a piece written; False where an outer step came before that. Raises OSError.

        The state's lock is held for a copy of one piece in memory: an outer step never waits for another peer, or for
        the disk. As it changes the digest, no file can hold a bit of two states.
        """
        state = self._state
        if index in self.have or state is None:
            return index in self.have
        with state.lock:
            if state.digest != self.digest:
                self._state = None
                return False
            piece = np.array(part_of((state.anchor, state.momentum), self.contents, index))
        self.write(index, piece.data)
        self.have.add(index)
        if len(self.have) == len(self.contents.hashes):
            self._state = None
        return True


def part_of(arrays: Arrays, contents: Contents, index: int) -> memoryview:
    """The bytes of a piece in the anchor and the momentum themselves."""
    array, piece = divmod(index, len(contents.hashes) // 2)
    return arrays[array].view(np.uint8).data[piece * PIECE : (piece + 1) * PIECE]
