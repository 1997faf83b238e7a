"""The same bytes whatever the processor has: numpy's kernels for newer instructions are switched off one by one.

A program of its own runs the codecs, the mean and the outer step, since numpy chooses its kernels when it is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np  # noqa: F401 -- one of its modules is looked up by its name
import pytest

PROGRAM = """
import os
import sys
import numpy as np
from blake3 import blake3
from prime_p2p.allreduce.codec import BITS, BLOCK, CHUNK, BlockVector, accumulate, dequantise, quantise
from prime_p2p.kernels import compiled
from prime_p2p.outer.nesterov import OuterOptimizer
from prime_p2p.outer.state import OuterState

umath = sys.modules.get("numpy._core._multiarray_umath") or sys.modules["numpy.core._multiarray_umath"]
assert not any(umath.__cpu_features__[name] for name in os.environ.get("NPY_DISABLE_CPU_FEATURES", "").split())

compiled.KERNELS = None

N = CHUNK + 5 * BLOCK + 321

def vector(label):
    integers = np.frombuffer(blake3(label.encode()).digest(4 * N), "<i4")
    return np.ldexp((integers >> 8).astype(np.float32) * np.float32(2.0**-23), -((np.arange(N) // BLOCK) * 37 % 149))

for codec, bits in BITS.items():
    state = OuterState.initial(vector("anchor"))
    mean, scratch = np.empty(N, np.float32), np.empty(CHUNK, np.float32)
    for step in range(3):
        for peer, weight in enumerate((0.2, 0.5, 0.3)):
            mine = BlockVector.empty(N, bits)
            quantise(vector(f"{step}/{peer}"), mine)
            accumulate(mean, mine, weight, peer == 0, scratch)
        update = BlockVector.empty(N, bits)
        quantise(mean, update)
        update.check()
        state.apply(update, 1, OuterOptimizer())
        dequantise(update, mean)
        print(codec, step, update.digest().hex(), blake3(mean.tobytes()).hexdigest(), state.digest.hex())
"""


def dispatched() -> list[str]:
    """What numpy has kernels of its own for, and this processor has."""
    umath = sys.modules.get("numpy._core._multiarray_umath") or sys.modules["numpy.core._multiarray_umath"]
    return [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__.get(name)]


def run(disabled: list[str]) -> list[str]:
    environment = os.environ | {"NPY_DISABLE_CPU_FEATURES": " ".join(disabled)}
    if not disabled:
        del environment["NPY_DISABLE_CPU_FEATURES"]
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def as_it_is() -> list[str]:
    return run([])


def test_without_the_longest_vectors_the_bytes_are_the_same(as_it_is: list[str]) -> None:
    longest = [name for name in dispatched() if name.startswith("AVX512") or name == "X86_V4"]
    assert len(as_it_is) == 6
    assert run(longest) == as_it_is


def test_without_anything_that_numpy_does_not_take_for_granted_the_bytes_are_the_same(as_it_is: list[str]) -> None:
    """Without AVX2 and FMA3 too, where a compiler could have joined a multiply and an add."""
    assert run(dispatched()) == as_it_is
