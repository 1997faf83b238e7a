"""The compiled kernels: the same bytes as NumPy's, and never loaded where they would not be."""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_p2p.allreduce import codec
from prime_p2p.allreduce.codec import BITS, BLOCK, LARGEST, BlockVector, Float32, NonFinite
from prime_p2p.kernels import compiled
from prime_p2p.outer import nesterov
from prime_p2p.outer.nesterov import OuterOptimizer

ROOT = Path(__file__).parents[2]
both = pytest.mark.parametrize("bits", list(BITS.values()), ids=list(BITS))


def compile_in(folder: Path) -> Path | None:
    """What installing the package does, with its source copied into ``folder``."""
    specification = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert specification is not None
    assert specification.loader is not None
    build = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(build)
    shutil.copy(ROOT / "prime_p2p/kernels/kernels.c", folder)
    library: Path | None = build.compile_kernels(folder)
    return library


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if platform.machine() != "x86_64" or shutil.which("cc") is None:
        pytest.skip("no x86-64, or no C compiler")
    folder = tmp_path_factory.mktemp("kernels")
    assert compile_in(folder) == folder / "kernels.so"
    return folder


@pytest.fixture(scope="module")
def kernels(built: Path) -> compiled.Kernels:
    try:
        return compiled.Kernels(built)
    except compiled.NotCompiled as reason:
        pytest.skip(str(reason))


def either_way(kernels: compiled.Kernels, work: Callable[[], Any]) -> tuple[Any, Any]:
    """What ``work`` returns with the compiled kernels, and without."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for which in (kernels, None):
            patch.setattr(compiled, "KERNELS", which)
            found.append(work())
    return found[0], found[1]


def vector(n: int, seed: int, exponents: tuple[int, int] = (-150, 118)) -> Float32:
    """Blocks of magnitudes of their own, from denormal to nearly the largest; some are zeros, with signs."""
    random = np.random.default_rng(seed)
    x = np.clip(random.standard_normal(n), -8, 8)
    for part in np.split(x, range(BLOCK, n, BLOCK)):
        with np.errstate(under="ignore"):
            part *= random.choice([0.0, 1.0, 1.0]) * 2.0 ** random.integers(*exponents)
    return x.astype(np.float32)


def quantised(x: Float32, bits: int) -> BlockVector:
    out = BlockVector.empty(len(x), bits)
    codec.quantise(x, out)
    return out


sizes = st.one_of(st.integers(0, 40), st.integers(BLOCK - 2, BLOCK + 2), st.integers(0, 5 * BLOCK))
seeds = st.integers(0, 2**32 - 1)


@both
@given(n=sizes, seed=seeds)
@settings(max_examples=100, deadline=None)
def test_they_quantise_and_restore_to_the_bytes_of_numpy(
    kernels: compiled.Kernels, bits: int, n: int, seed: int
) -> None:
    def work() -> tuple[bytes, bytes]:
        blocks, out = quantised(vector(n, seed), bits), np.full(n, np.nan, np.float32)
        codec.dequantise(blocks, out)
        return blocks.digest(), out.tobytes()

    one, other = either_way(kernels, work)
    assert one == other


@both
def test_halves_between_two_levels_go_to_the_even_one_in_both(kernels: compiled.Kernels, bits: int) -> None:
    top = {8: 127, 4: 7}[bits]
    x = np.arange(-top, top + 0.5, 0.5, dtype=np.float32)

    def work() -> bytes:
        return quantised(x, bits).values.tobytes()

    one, other = either_way(kernels, work)
    assert one == other


@both
@given(n=sizes, seed=seeds, count=st.integers(1, 6))
@settings(max_examples=50, deadline=None)
def test_they_average_to_the_bytes_of_numpy(
    kernels: compiled.Kernels, bits: int, n: int, seed: int, count: int
) -> None:
    vectors = [quantised(vector(n, seed + number), bits) for number in range(count)]
    weights = np.random.default_rng(seed).integers(1, 10**9, count)
    coefficients = [int(weight) / int(weights.sum()) for weight in weights]

    def work() -> bytes:
        out = BlockVector.empty(n, bits)
        codec.average(vectors, coefficients, out)
        return out.digest()

    one, other = either_way(kernels, work)
    assert one == other


@both
@pytest.mark.parametrize("with_nesterov", [True, False])
def test_they_make_the_outer_steps_of_numpy(kernels: compiled.Kernels, bits: int, with_nesterov: bool) -> None:
    n = 3 * BLOCK + 77
    updates = [quantised(vector(n, seed, (-30, 3)), bits) for seed in range(3)]

    def work() -> bytes:
        anchor, momentum = vector(n, 9, (-3, 3)), np.zeros(n, np.float32)
        for update in updates:
            nesterov.step(anchor, momentum, update, OuterOptimizer(0.7, 0.9, with_nesterov))
        return anchor.tobytes() + momentum.tobytes()

    one, other = either_way(kernels, work)
    assert one == other


@both
@pytest.mark.parametrize("index", [0, BLOCK - 1, BLOCK, 3 * BLOCK + 4])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf, "too large"])
def test_they_find_the_first_element_that_cannot_be_averaged(
    kernels: compiled.Kernels, bits: int, index: int, bad: float | str
) -> None:
    x = np.ones(3 * BLOCK + 5, np.float32)
    x[index:] = LARGEST[bits] * 1.001 if isinstance(bad, str) else bad

    def work() -> int:
        with pytest.raises(NonFinite) as caught:
            quantised(x, bits)
        return caught.value.index

    assert either_way(kernels, work) == (index, index)


def test_memory_that_may_not_be_written_or_is_not_in_a_row_is_refused(kernels: compiled.Kernels) -> None:
    x, out = np.ones(BLOCK, np.float32), BlockVector.empty(BLOCK)
    for wrong in (np.ones(2 * BLOCK, np.float32)[::2], np.ones(BLOCK)):
        with pytest.raises(ctypes.ArgumentError):
            kernels.quantise(wrong, 8, out.arrays)
    out.values.flags.writeable = False
    with pytest.raises(ctypes.ArgumentError):
        kernels.quantise(x, 8, out.arrays)


def test_without_a_compiler_nothing_is_compiled_and_why_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "no compiler"))
    assert compile_in(tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == ["kernels.c"]
    monkeypatch.setattr(compiled, "FEATURE", "fpu")
    with pytest.raises(compiled.NotCompiled, match="no C compiler"):
        compiled.Kernels(tmp_path)


def test_a_library_of_another_source_is_not_taken(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(built / "kernels.so", tmp_path)
    (tmp_path / "kernels.c").write_bytes((built / "kernels.c").read_bytes() + b"\n")
    monkeypatch.setattr(compiled, "FEATURE", "fpu")
    with pytest.raises(compiled.NotCompiled, match="another version"):
        compiled.Kernels(tmp_path)


def test_a_processor_without_the_instructions_is_left_to_numpy(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "FEATURE", "avx3")
    with pytest.raises(compiled.NotCompiled, match="this processor has no AVX3"):
        compiled.Kernels(built)
