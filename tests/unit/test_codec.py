"""The int8 codec: error bounds, the wire form, and averages that equal the exact ones."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_p2p.allreduce import codec
from prime_p2p.allreduce.codec import (
    BLOCK,
    CHUNK,
    LARGEST,
    BlockVector,
    Float32,
    NonFinite,
    accumulate,
    blocks_of,
    dequantise,
    quantise,
    wire_bytes,
)

DENORMAL = float(np.finfo(np.float32).smallest_subnormal)

sizes = st.one_of(st.integers(0, 3 * BLOCK), st.sampled_from([CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + 3 * BLOCK + 7]))


@st.composite
def vectors(draw: st.DrawFn, n: int | None = None, exponents: tuple[int, int] = (-150, 120)) -> Float32:
    """A vector whose blocks have magnitudes of their own, from denormal to huge; some are zeros, some constant."""
    n = draw(sizes) if n is None else n
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = random.standard_normal(n)
    low, high = exponents
    for block, part in enumerate(np.split(x, range(BLOCK, n, BLOCK))):
        kind = random.integers(8)
        if kind == 0:
            part[:] = 0
        elif kind == 1:
            part[:] = part[:1]
        with np.errstate(under="ignore"):
            part *= 2.0 ** (draw(st.integers(low, high)) if block < 3 else random.integers(low, high))
    return x.astype(np.float32)


def quantised(x: Float32) -> BlockVector:
    vector = BlockVector.empty(len(x))
    quantise(x, vector)
    return vector


def restored(vector: BlockVector) -> Float32:
    out = np.full(vector.n, np.nan, np.float32)
    dequantise(vector, out)
    return out


def assert_within_bound(x: Float32, restored: Float32) -> None:
    for start in range(0, len(x), BLOCK):
        exact = x[start : start + BLOCK].astype(np.float64)
        error = np.abs(restored[start : start + BLOCK].astype(np.float64) - exact).max()
        assert error <= np.abs(exact).max() / 254 * (1 + 2**-14) + 2.0**-149


@given(vectors())
@settings(max_examples=150, deadline=None)
def test_every_element_is_restored_within_half_a_level_of_its_block(x: Float32) -> None:
    vector = quantised(x)
    assert_within_bound(x, restored(vector))
    vector.check()


@given(vectors(), st.integers(1, 5))
@settings(max_examples=50, deadline=None)
def test_quantising_in_pieces_gives_the_bytes_of_the_whole(x: Float32, blocks: int) -> None:
    pieces = BlockVector.empty(len(x))
    for start in range(0, len(x), blocks * BLOCK):
        quantise(x[start : start + blocks * BLOCK], pieces, start)
    assert pieces.digest() == quantised(x).digest()


def test_an_empty_vector_is_quantised_to_no_blocks() -> None:
    vector = quantised(np.empty(0, np.float32))
    assert (vector.n, vector.blocks, vector.nbytes) == (0, 0, 0)
    assert [bytes(buffer) for buffer in vector.buffers()] == [b"", b""]
    assert restored(vector).shape == (0,)
    vector.check()


@pytest.mark.parametrize("value", [1.0, -3.7, 1e30, -1e30, 1e-30, LARGEST, -LARGEST])
def test_one_element_survives_up_to_rounding(value: float) -> None:
    x = np.array([value], np.float32)
    assert restored(quantised(x)) == pytest.approx(x, rel=2**-23)


@pytest.mark.parametrize("value", [0.0, 0.3, -1e30, 1e-30, 1e-37, -1e-40])
def test_a_constant_vector_survives_up_to_rounding(value: float) -> None:
    x = np.full(BLOCK + 3, value, np.float32)
    assert restored(quantised(x)) == pytest.approx(x, rel=2**-23, abs=127 * DENORMAL)


def test_zeros_are_exact_beside_large_elements() -> None:
    x = np.zeros(2 * BLOCK, np.float32)
    x[7] = 1e30
    out = restored(quantised(x))
    assert np.flatnonzero(out).tolist() == [7]


def test_the_smallest_denormals_are_exact() -> None:
    x = np.arange(-127, 128, dtype=np.float32) * np.float32(DENORMAL)
    np.testing.assert_array_equal(restored(quantised(x)), x)


def test_a_level_is_rounded_to_nearest_and_ties_to_even() -> None:
    x = np.array([127, 0.4, 0.5, 0.6, 1.5, 2.5, -0.5, -1.5, -126.6], np.float32)
    assert quantised(x).values.tolist() == [127, 0, 0, 1, 2, 2, 0, -2, -127]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, np.float32(LARGEST) * np.float32(1.001)])
@pytest.mark.parametrize("index", [0, BLOCK, CHUNK - 1, CHUNK + BLOCK + 5, CHUNK + 3 * BLOCK + 6])
def test_the_first_element_that_is_not_finite_is_named(bad: float, index: int) -> None:
    x = np.ones(CHUNK + 3 * BLOCK + 7, np.float32)
    x[index] = bad
    x[index + 1 :] = np.nan
    with pytest.raises(NonFinite) as caught:
        quantise(x, BlockVector.empty(len(x)))
    assert caught.value.index == index


def test_the_index_of_an_element_that_is_not_finite_counts_from_the_start_of_the_whole_vector() -> None:
    x = np.ones(BLOCK + 5, np.float32)
    x[BLOCK + 2] = np.nan
    with pytest.raises(NonFinite) as caught:
        quantise(x, BlockVector.empty(4 * BLOCK + 5), 3 * BLOCK)
    assert caught.value.index == 4 * BLOCK + 2


@pytest.mark.parametrize(("m", "start"), [(BLOCK, 1), (5, 0), (2 * BLOCK, BLOCK), (BLOCK, 4 * BLOCK)])
def test_a_piece_that_is_not_whole_blocks_of_the_vector_is_refused(m: int, start: int) -> None:
    with pytest.raises(ValueError, match="whole blocks"):
        quantise(np.ones(m, np.float32), BlockVector.empty(2 * BLOCK + 5), start)


def test_the_wire_form_is_the_scales_then_the_values() -> None:
    vector = quantised(np.linspace(-1, 2, BLOCK + 2, dtype=np.float32))
    scales, values = vector.buffers()
    assert bytes(scales) == vector.scales.astype("<f4").tobytes()
    assert bytes(values) == vector.values.tobytes()
    assert len(scales) + len(values) == vector.nbytes == wire_bytes(vector.n) == 2 * 4 + BLOCK + 2


@given(vectors(exponents=(-20, 20)))
@settings(max_examples=25, deadline=None)
def test_a_vector_over_its_wire_form_is_the_same_vector(x: Float32) -> None:
    vector = quantised(x)
    wire = bytearray().join(vector.buffers())
    over = BlockVector.over(vector.n, wire)
    assert over.digest() == vector.digest()
    assert over.n == 0 or np.shares_memory(over.values, np.frombuffer(wire, np.uint8))


@pytest.mark.parametrize("length", [0, wire_bytes(BLOCK + 1) - 1, wire_bytes(BLOCK + 1) + 1])
def test_a_wire_form_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="travel in"):
        BlockVector.over(BLOCK + 1, bytes(length))


def test_what_is_written_into_the_buffers_is_in_the_vector() -> None:
    source, target = quantised(np.linspace(-1, 2, BLOCK + 2, dtype=np.float32)), BlockVector.empty(BLOCK + 2)
    for into, out_of in zip(target.buffers(), source.buffers(), strict=True):
        into[:] = out_of
    assert target.digest() == source.digest()


@given(vectors(n=5 * BLOCK + 100, exponents=(-20, 20)), st.integers(0, 6), st.integers(0, 6))
@settings(max_examples=25, deadline=None)
def test_a_slice_is_a_view_of_those_blocks(x: Float32, start: int, stop: int) -> None:
    vector = quantised(x)
    part = vector.slice(start, stop)
    assert part.blocks == blocks_of(part.n) == max(0, stop - start)
    np.testing.assert_array_equal(restored(part), restored(vector)[start * BLOCK : stop * BLOCK])
    part.values.fill(0)
    assert not vector.values[start * BLOCK : stop * BLOCK].any()


def test_the_digest_tells_length_scales_and_values_apart() -> None:
    x = np.linspace(-1, 2, BLOCK + 2, dtype=np.float32)
    digests = {quantised(x).digest(), quantised(x[:-1]).digest(), quantised(np.append(x, np.float32(0))).digest()}
    for change in ("scales", "values"):
        vector = quantised(x)
        getattr(vector, change)[-1] -= 1
        digests.add(vector.digest())
    assert len(digests) == 5
    assert {len(digest) for digest in digests} == {32}


@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, -1.0, 2.0**120])
def test_a_scale_that_cannot_be_is_found_in_its_block(scale: float) -> None:
    vector = quantised(np.ones(3 * BLOCK, np.float32))
    vector.scales[2] = scale
    with pytest.raises(NonFinite) as caught:
        vector.check()
    assert caught.value.index == 2 * BLOCK


def test_a_value_that_is_never_written_is_found_in_its_block() -> None:
    vector = quantised(np.ones(3 * BLOCK, np.float32))
    vector.values[BLOCK + 3] = -128
    with pytest.raises(NonFinite) as caught:
        vector.check()
    assert caught.value.index == BLOCK


def average(members: list[BlockVector], coefficients: list[float]) -> Float32:
    acc = np.full(members[0].n, np.nan, np.float32)
    scratch = np.full(min(CHUNK, len(acc)), np.nan, np.float32)
    for i, (vector, coefficient) in enumerate(zip(members, coefficients, strict=True)):
        accumulate(acc, vector, coefficient, i == 0, scratch)
    return acc


@given(st.data(), sizes, st.lists(st.integers(0, 10**9), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_an_average_equals_the_exact_one_within_the_documented_bound(
    data: st.DataObject, n: int, weights: list[int]
) -> None:
    members = [quantised(data.draw(vectors(n=n))) for _ in weights]
    coefficients = [weight / max(1, sum(weights)) for weight in weights]
    acc = average(members, coefficients).astype(np.float64)
    # Each factor fits float64's 53 bits, and so does a product of two of them; the rest is 2**-29 of the bound.
    terms = [
        coefficient * (np.repeat(vector.scales.astype(np.float64), BLOCK)[:n] * vector.values)
        for vector, coefficient in zip(members, coefficients, strict=True)
    ]
    bound = (len(weights) + 3) * 2.0**-24 * sum(np.abs(term) for term in terms) + len(weights) * 2.0**-142
    assert (np.abs(acc - sum(terms)) <= bound).all()


@given(st.data(), st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_averaging_in_slices_gives_the_bytes_of_the_whole(data: st.DataObject, blocks: int) -> None:
    members = [quantised(data.draw(vectors(n=6 * BLOCK + 9))) for _ in range(3)]
    coefficients = [0.2, 0.7, 0.1]
    parts = [
        average([vector.slice(start, start + blocks) for vector in members], coefficients)
        for start in range(0, members[0].blocks, blocks)
    ]
    assert np.concatenate(parts).tobytes() == average(members, coefficients).tobytes()


def test_the_chunk_size_changes_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(1).standard_normal(CHUNK + 5 * BLOCK + 77).astype(np.float32)

    def everything() -> list[bytes]:
        vector = quantised(x)
        return [vector.digest(), restored(vector).tobytes(), average([vector, vector], [0.3, 0.7]).tobytes()]

    expected = everything()
    monkeypatch.setattr(codec, "CHUNK", 3 * BLOCK)
    assert everything() == expected


def test_the_largest_magnitudes_pass_the_check_and_their_average_is_finite() -> None:
    extreme = quantised(np.full(BLOCK, LARGEST, np.float32))
    extreme.check()
    assert np.isfinite(average([extreme] * 7, [1 / 7] * 7)).all()


def test_no_kernel_allocates_more_than_about_one_chunk() -> None:
    n = 8 * CHUNK + 5
    x, vector, scratch = np.ones(n, np.float32), BlockVector.empty(n), np.empty(CHUNK, np.float32)
    tracemalloc.start()
    try:
        quantise(x, vector)
        dequantise(vector, x)
        accumulate(x, vector, 0.5, False, scratch)
        vector.check()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.25 * 4 * CHUNK
