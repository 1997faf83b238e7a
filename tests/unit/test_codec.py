"""The codecs: error bounds, the wire form, and averages that equal the exact ones."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_p2p.allreduce import codec
from prime_p2p.allreduce.codec import (
    BITS,
    BLOCK,
    CHUNK,
    LARGEST,
    BlockVector,
    Float32,
    NonFinite,
    accumulate,
    bits_of,
    blocks_of,
    dequantise,
    quantise,
    wire_bytes,
)
from prime_p2p.errors import BadInput

TOP = {8: 127, 4: 7}  # the largest level
DENORMAL = float(np.finfo(np.float32).smallest_subnormal)

both = pytest.mark.parametrize("bits", list(BITS.values()), ids=list(BITS))
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


def quantised(x: Float32, bits: int = 8) -> BlockVector:
    vector = BlockVector.empty(len(x), bits)
    quantise(x, vector)
    return vector


def restored(vector: BlockVector) -> Float32:
    out = np.full(vector.n, np.nan, np.float32)
    dequantise(vector, out)
    return out


def levels_of(vector: BlockVector) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The levels, read off the values one by one."""
    if vector.bits == 8:
        return vector.values.astype(np.int64)
    levels = np.empty(vector.n, np.int64)
    for start in range(0, vector.n, BLOCK):
        width = min(BLOCK, vector.n - start)
        half = -(-width // 2)
        packed = vector.values[start // 2 : start // 2 + half].astype(np.int64)
        levels[start : start + half] = packed % 16 - 8
        levels[start + half : start + width] = packed[: width - half] // 16 - 8
    return levels


def assert_within_bound(x: Float32, restored: Float32, bits: int) -> None:
    for start in range(0, len(x), BLOCK):
        exact = x[start : start + BLOCK].astype(np.float64)
        error = np.abs(restored[start : start + BLOCK].astype(np.float64) - exact).max()
        assert error <= np.abs(exact).max() / (2 * TOP[bits]) * (1 + 2**-14) + 2.0**-149


@both
@given(x=vectors())
@settings(max_examples=100, deadline=None)
def test_every_element_is_restored_within_half_a_level_of_its_block(bits: int, x: Float32) -> None:
    vector = quantised(x, bits)
    assert_within_bound(x, restored(vector), bits)
    vector.check()


@both
@given(x=vectors())
@settings(max_examples=25, deadline=None)
def test_an_element_is_its_scale_times_its_level(bits: int, x: Float32) -> None:
    vector = quantised(x, bits)
    levels = levels_of(vector)
    assert np.abs(levels).max(initial=0) <= TOP[bits]
    expected = np.repeat(vector.scales, BLOCK)[: vector.n] * levels.astype(np.float32)
    np.testing.assert_array_equal(restored(vector), expected)


@both
@given(x=vectors(), blocks=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_quantising_in_pieces_gives_the_bytes_of_the_whole(bits: int, x: Float32, blocks: int) -> None:
    pieces = BlockVector.empty(len(x), bits)
    for start in range(0, len(x), blocks * BLOCK):
        quantise(x[start : start + blocks * BLOCK], pieces, start)
    assert pieces.digest() == quantised(x, bits).digest()


@both
def test_an_empty_vector_is_quantised_to_no_blocks(bits: int) -> None:
    vector = quantised(np.empty(0, np.float32), bits)
    assert (vector.n, vector.blocks, vector.nbytes) == (0, 0, 0)
    assert [bytes(buffer) for buffer in vector.buffers()] == [b"", b""]
    assert restored(vector).shape == (0,)
    vector.check()


@both
def test_a_new_vector_is_all_zeros(bits: int) -> None:
    vector = BlockVector.empty(BLOCK + 3, bits)
    vector.check()
    vector.scales[:] = 1
    assert not restored(vector).any()
    assert vector.digest() != quantised(np.ones(BLOCK + 3, np.float32), bits).digest()


@both
@pytest.mark.parametrize("value", [1.0, -3.7, 1e30, -1e30, 1e-30, "largest", "-largest"])
def test_one_element_survives_up_to_rounding(bits: int, value: float | str) -> None:
    if isinstance(value, str):
        value = -LARGEST[bits] if value[0] == "-" else LARGEST[bits]
    x = np.array([value], np.float32)
    assert restored(quantised(x, bits)) == pytest.approx(x, rel=2**-23)


@both
@pytest.mark.parametrize("value", [0.0, 0.3, -1e30, 1e-30, 1e-37, -1e-40])
def test_a_constant_vector_survives_up_to_rounding(bits: int, value: float) -> None:
    x = np.full(BLOCK + 3, value, np.float32)
    assert restored(quantised(x, bits)) == pytest.approx(x, rel=2**-23, abs=TOP[bits] * DENORMAL)


@both
def test_zeros_are_exact_beside_large_elements(bits: int) -> None:
    x = np.zeros(2 * BLOCK, np.float32)
    x[7] = 1e30
    out = restored(quantised(x, bits))
    assert np.flatnonzero(out).tolist() == [7]


@both
def test_the_smallest_denormals_are_exact(bits: int) -> None:
    x = np.arange(-TOP[bits], TOP[bits] + 1, dtype=np.float32) * np.float32(DENORMAL)
    np.testing.assert_array_equal(restored(quantised(x, bits)), x)


def test_a_level_is_rounded_to_nearest_and_ties_to_even() -> None:
    x = np.array([127, 0.4, 0.5, 0.6, 1.5, 2.5, -0.5, -1.5, -126.6], np.float32)
    assert quantised(x).values.tolist() == [127, 0, 0, 1, 2, 2, 0, -2, -127]
    x = np.array([-7, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, -0.5, -1.5, -2.4, 6.6], np.float32)
    assert levels_of(quantised(x, 4)).tolist() == [-7, 0, 2, 2, 4, 4, 6, 6, 0, -2, -2, 7]


def test_zeros_of_any_sign_have_one_form() -> None:
    for bits in BITS.values():
        zeros = {quantised(np.full(BLOCK, zero, np.float32), bits).digest() for zero in (0.0, -0.0)}
        assert zeros == {BlockVector.empty(BLOCK, bits).digest()}


def test_a_codec_has_a_name() -> None:
    assert [bits_of(name) for name in ("int8", "int4")] == [8, 4]
    with pytest.raises(BadInput, match="must be int8 or int4, not 'int3'"):
        bits_of("int3")


@both
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf, "too large", "-too large"])
@pytest.mark.parametrize("index", [0, BLOCK, CHUNK - 1, CHUNK + BLOCK + 5, CHUNK + 3 * BLOCK + 6])
def test_the_first_element_that_is_not_finite_is_named(bits: int, bad: float | str, index: int) -> None:
    if isinstance(bad, str):
        bad = LARGEST[bits] * (-1.001 if bad[0] == "-" else 1.001)
    x = np.ones(CHUNK + 3 * BLOCK + 7, np.float32)
    x[index] = bad
    x[index + 1 :] = np.nan
    with pytest.raises(NonFinite) as caught:
        quantise(x, BlockVector.empty(len(x), bits))
    assert caught.value.index == index


def test_the_index_of_an_element_that_is_not_finite_counts_from_the_start_of_the_whole_vector() -> None:
    x = np.ones(BLOCK + 5, np.float32)
    x[BLOCK + 2] = np.nan
    with pytest.raises(NonFinite) as caught:
        quantise(x, BlockVector.empty(4 * BLOCK + 5), 3 * BLOCK)
    assert caught.value.index == 4 * BLOCK + 2


@both
@pytest.mark.parametrize(("m", "start"), [(BLOCK, 1), (5, 0), (2 * BLOCK, BLOCK), (BLOCK, 4 * BLOCK)])
def test_a_piece_that_is_not_whole_blocks_of_the_vector_is_refused(bits: int, m: int, start: int) -> None:
    with pytest.raises(ValueError, match="whole blocks"):
        quantise(np.ones(m, np.float32), BlockVector.empty(2 * BLOCK + 5, bits), start)


@both
@pytest.mark.parametrize("n", [1, 2, 3, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 2, CHUNK + 5])
def test_the_wire_form_is_the_scales_then_the_values(bits: int, n: int) -> None:
    vector = quantised(np.linspace(-1, 2, n, dtype=np.float32), bits)
    scales, values = vector.buffers()
    assert bytes(scales) == vector.scales.astype("<f4").tobytes()
    assert bytes(values) == vector.values.tobytes()
    assert len(scales) + len(values) == vector.nbytes == wire_bytes(n, bits)
    assert vector.nbytes == 4 * -(-n // BLOCK) + (n if bits == 8 else -(-n // 2))


@both
@given(x=vectors(exponents=(-20, 20)))
@settings(max_examples=25, deadline=None)
def test_a_vector_over_its_wire_form_is_the_same_vector(bits: int, x: Float32) -> None:
    vector = quantised(x, bits)
    wire = bytearray().join(vector.buffers())
    over = BlockVector.over(vector.n, wire, bits)
    assert restored(over).tobytes() == restored(vector).tobytes()
    assert over.digest() == vector.digest()
    assert over.n == 0 or np.shares_memory(over.values, np.frombuffer(wire, np.uint8))


@both
@pytest.mark.parametrize("other", [None, -1, 1])
def test_a_wire_form_of_another_length_is_refused(bits: int, other: int | None) -> None:
    length = 0 if other is None else wire_bytes(BLOCK + 1, bits) + other
    with pytest.raises(ValueError, match="travel in"):
        BlockVector.over(BLOCK + 1, bytes(length), bits)


@both
def test_what_is_written_into_the_buffers_is_in_the_vector(bits: int) -> None:
    source, target = (
        quantised(np.linspace(-1, 2, BLOCK + 2, dtype=np.float32), bits),
        BlockVector.empty(BLOCK + 2, bits),
    )
    for into, out_of in zip(target.buffers(), source.buffers(), strict=True):
        into[:] = out_of
    assert target.digest() == source.digest()


@both
@given(x=vectors(n=5 * BLOCK + 101, exponents=(-20, 20)), start=st.integers(0, 6), stop=st.integers(0, 6))
@settings(max_examples=25, deadline=None)
def test_a_slice_is_a_view_of_those_blocks(bits: int, x: Float32, start: int, stop: int) -> None:
    vector = quantised(x, bits)
    part = vector.slice(start, stop)
    assert part.blocks == blocks_of(part.n) == max(0, stop - start)
    np.testing.assert_array_equal(restored(part), restored(vector)[start * BLOCK : stop * BLOCK])
    assert part.nbytes == wire_bytes(part.n, bits)
    part.check()
    part.values.fill(0)
    assert not vector.values[start * BLOCK * bits // 8 : stop * BLOCK * bits // 8].any()


@both
def test_the_digest_tells_length_scales_and_values_apart(bits: int) -> None:
    x = np.linspace(-1, 2, BLOCK + 2, dtype=np.float32)
    digests = {quantised(one, bits).digest() for one in (x, x[:-1], np.append(x, np.float32(0)))}
    for change in ("scales", "values"):
        vector = quantised(x, bits)
        getattr(vector, change)[-1] -= 1
        digests.add(vector.digest())
    assert len(digests) == 5
    assert {len(digest) for digest in digests} == {32}


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_digest_tells_codecs_of_the_same_bytes_apart(n: int) -> None:
    """So short that the wire forms of two and three elements could be mistaken for each other's."""
    vectors = [quantised(np.ones(n, np.float32), bits) for bits in BITS.values()]
    short = BlockVector(1, vectors[1].values[:1].view(np.int8), vectors[1].scales)
    assert len({vectors[0].digest(), vectors[1].digest(), short.digest()}) == 3


@both
@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, -1.0, "too large"])
def test_a_scale_that_cannot_be_is_found_in_its_block(bits: int, scale: float | str) -> None:
    vector = quantised(np.ones(3 * BLOCK, np.float32), bits)
    vector.scales[2] = LARGEST[bits] / TOP[bits] * 1.001 if isinstance(scale, str) else scale
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


@both
@given(data=st.data(), n=sizes, weights=st.lists(st.integers(0, 10**9), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_an_average_equals_the_exact_one_within_the_documented_bound(
    bits: int, data: st.DataObject, n: int, weights: list[int]
) -> None:
    members = [quantised(data.draw(vectors(n=n)), bits) for _ in weights]
    coefficients = [weight / max(1, sum(weights)) for weight in weights]
    acc = average(members, coefficients).astype(np.float64)
    # Each factor fits float64's 53 bits, and so does a product of two of them; the rest is 2**-29 of the bound.
    terms = [
        coefficient * (np.repeat(vector.scales.astype(np.float64), BLOCK)[:n] * levels_of(vector))
        for vector, coefficient in zip(members, coefficients, strict=True)
    ]
    bound = (len(weights) + 3) * 2.0**-24 * sum(np.abs(term) for term in terms) + len(weights) * 2.0**-142
    assert (np.abs(acc - sum(terms)) <= bound).all()


@both
@given(data=st.data(), blocks=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_averaging_in_slices_gives_the_bytes_of_the_whole(bits: int, data: st.DataObject, blocks: int) -> None:
    members = [quantised(data.draw(vectors(n=6 * BLOCK + 9)), bits) for _ in range(3)]
    coefficients = [0.2, 0.7, 0.1]
    parts = [
        average([vector.slice(start, start + blocks) for vector in members], coefficients)
        for start in range(0, members[0].blocks, blocks)
    ]
    assert np.concatenate(parts).tobytes() == average(members, coefficients).tobytes()


@both
@pytest.mark.parametrize("n", [BLOCK, 3 * BLOCK])
def test_vectors_of_another_length_are_refused(bits: int, n: int) -> None:
    vector = quantised(np.ones(2 * BLOCK, np.float32), bits)
    with pytest.raises(ValueError, match="other lengths"):
        codec.average([vector], [1.0], BlockVector.empty(n, bits))
    with pytest.raises(ValueError, match="for a vector of"):
        dequantise(vector, np.empty(n, np.float32))


@both
def test_a_mean_is_off_by_a_level_of_the_weighted_mean_of_the_magnitudes_at_most(bits: int) -> None:
    random = np.random.default_rng(2)
    vectors = [random.standard_t(3, 50 * BLOCK).astype(np.float32) * np.float32(scale) for scale in (1, 10, 0.1)]
    weights = [0.5, 0.2, 0.3]
    mean = quantised(average([quantised(x, bits) for x in vectors], weights), bits)
    exact = np.average(np.asarray(vectors, np.float64), axis=0, weights=weights)
    error = np.abs(restored(mean) - exact).reshape(-1, BLOCK).max(axis=1)
    magnitudes = np.abs(np.asarray(vectors)).reshape(3, -1, BLOCK).max(axis=2)
    assert (error <= np.average(magnitudes, axis=0, weights=weights) / TOP[bits] * (1 + 2**-14)).all()


@both
def test_the_chunk_size_changes_no_bytes(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(1).standard_normal(CHUNK + 5 * BLOCK + 77).astype(np.float32)

    def everything() -> list[bytes]:
        vector = quantised(x, bits)
        return [vector.digest(), restored(vector).tobytes(), average([vector, vector], [0.3, 0.7]).tobytes()]

    expected = everything()
    monkeypatch.setattr(codec, "CHUNK", 3 * BLOCK)
    assert everything() == expected


@both
def test_the_largest_magnitudes_pass_the_check_and_their_average_is_finite(bits: int) -> None:
    extreme = quantised(np.full(BLOCK, LARGEST[bits], np.float32), bits)
    extreme.check()
    assert np.isfinite(average([extreme] * 7, [1 / 7] * 7)).all()


@both
def test_no_kernel_allocates_more_than_about_one_chunk(bits: int) -> None:
    n = 8 * CHUNK + 5
    x, vector, scratch = np.ones(n, np.float32), BlockVector.empty(n, bits), np.empty(CHUNK, np.float32)
    tracemalloc.start()
    try:
        quantise(x, vector)
        dequantise(vector, x)
        accumulate(x, vector, 0.5, False, scratch)
        vector.check()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < (1.25 if bits == 8 else 1.5) * 4 * CHUNK  # float32, and levels to pack
