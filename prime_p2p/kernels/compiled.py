"""``kernels.c`` as functions on arrays, where installing this package could compile it and the processor fits.

``KERNELS`` is None elsewhere, and ``ABSENT`` says why: callers then take NumPy, which makes the same bytes. A call
releases the GIL.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Blocks = tuple[npt.NDArray[np.uint8], Float32]

# A contiguous array of this type, and one that may be written as well; ctypes refuses others.
_Bytes = np.ctypeslib.ndpointer(np.uint8, 1, flags="C")
_BytesOut = np.ctypeslib.ndpointer(np.uint8, 1, flags=("C", "W"))
_Floats = np.ctypeslib.ndpointer(np.float32, 1, flags="C")
_FloatsOut = np.ctypeslib.ndpointer(np.float32, 1, flags=("C", "W"))
_Pointers, _Long, _Int, _Float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float

FEATURE = "avx2"
"""What the library is compiled for, as Linux names it among the flags of a processor."""


class NotCompiled(Exception):
    """There are no compiled kernels here, and why."""


class Kernels:
    """The functions of one library. ``bits`` are 8 or 4, those of a level. A vector of blocks is its values, as bytes,
    and its scales; that they are as many as their elements need is for the caller to see to."""

    def __init__(self, folder: Path) -> None:
        """Raises NotCompiled unless ``folder`` has the source, and a library of that very source which runs here."""
        if FEATURE not in _processor():
            raise NotCompiled(f"this processor has no {FEATURE.upper()}")
        try:
            library = ctypes.CDLL(str(folder / "kernels.so"))
        except OSError:
            raise NotCompiled("there was no C compiler when prime-p2p was installed") from None
        digest = hashlib.sha256((folder / "kernels.c").read_bytes()).hexdigest().encode()
        if (ctypes.c_char * len(digest)).in_dll(library, "source").raw != digest:
            raise NotCompiled("they were compiled for another version of prime-p2p")
        self._quantise, self._average = library.quantise, library.average
        self._dequantise, self._outer_step = library.dequantise, library.outer_step
        self._quantise.argtypes = [_Floats, _Long, _Int, _BytesOut, _FloatsOut]
        self._average.argtypes = [_Pointers, _Pointers, _Pointers, _Int, _Long, _Int, _BytesOut, _FloatsOut]
        self._quantise.restype = self._average.restype = _Long
        self._dequantise.argtypes = [_Bytes, _Floats, _Long, _Int, _FloatsOut]
        self._outer_step.argtypes = [_Bytes, _Floats, _Long, _Int, _Float, _Float, _Int, _FloatsOut, _FloatsOut]
        self._dequantise.restype = self._outer_step.restype = None

    def quantise(self, x: Float32, bits: int, out: Blocks) -> int:
        """Returns the index of the first element of x that cannot be quantised, or -1."""
        index: int = self._quantise(x, len(x), bits, *out)
        return index

    def dequantise(self, vector: Blocks, bits: int, out: Float32) -> None:
        self._dequantise(*vector, len(out), bits, out)

    def average(self, vectors: Sequence[Blocks], coefficients: Sequence[float], n: int, bits: int, out: Blocks) -> int:
        """Quantise the sum of coefficient times vector, each of ``n`` elements. Returns as ``quantise`` does."""
        pointers, floats = ctypes.c_void_p * len(vectors), ctypes.c_float * len(vectors)
        values, scales = (pointers(*(array.ctypes.data for array in arrays)) for arrays in zip(*vectors, strict=True))
        index: int = self._average(values, scales, floats(*coefficients), len(vectors), n, bits, *out)
        return index

    def outer_step(
        self, update: Blocks, bits: int, numbers: tuple[float, float, bool], momentum: Float32, anchor: Float32
    ) -> None:
        """``numbers`` are learning rate, momentum, and whether it is Nesterov's."""
        self._outer_step(*update, len(anchor), bits, *numbers, momentum, anchor)


def _processor() -> set[str]:
    """The flags of the processor; none where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return set(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())


KERNELS: Kernels | None = None
ABSENT = ""
try:
    KERNELS = Kernels(Path(__file__).parent)
except NotCompiled as reason:
    ABSENT = str(reason)
