"""Nests of containers and tensors as JSON and tensors."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prime_p2p.state.tensor_tree import flatten, unflatten

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
nests = st.recursive(
    leaves,
    lambda nest: (
        st.lists(nest, max_size=4)
        | st.lists(nest, max_size=4).map(tuple)
        | st.dictionaries(st.integers() | st.text(), nest, max_size=4)
    ),
    max_leaves=12,
)


def through_json(tree: Any) -> Any:
    encoded, tensors = flatten(tree)
    return unflatten(json.loads(json.dumps(encoded)), tensors)


@given(nests)
def test_containers_and_plain_values_come_back_as_they_were(tree: Any) -> None:
    restored = through_json(tree)
    assert restored == tree
    assert repr(restored) == repr(tree)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool])
def test_tensors_come_back_bit_by_bit(dtype: torch.dtype) -> None:
    tensors = [torch.arange(6).reshape(2, 3).to(dtype), torch.tensor(1).to(dtype), torch.empty(0, 4, dtype=dtype)]
    restored = through_json({"state": {0: {"a": tensors[0]}, 1: (tensors[1], [tensors[2]])}})
    found = [restored["state"][0]["a"], restored["state"][1][0], restored["state"][1][1][0]]
    for tensor, original in zip(found, tensors, strict=True):
        assert (tensor.dtype, tensor.shape) == (original.dtype, original.shape)
        assert torch.equal(tensor, original)


def test_a_tensor_that_occurs_twice_is_written_once_and_comes_back_as_one() -> None:
    tensor = torch.ones(3)
    assert len(flatten([tensor, tensor])[1]) == 1
    first, second = through_json([tensor, tensor])
    assert first is second


@pytest.mark.parametrize("odd", [object(), {1, 2}, b"bytes", 1j, torch.float32])
def test_other_objects_are_refused(odd: Any) -> None:
    with pytest.raises(TypeError, match="cannot be written"):
        flatten({"state": [odd]})


@pytest.mark.parametrize("encoded", [{}, {"dict": [[1]]}, {"set": []}, {"tensor": "7"}, {"dict": [], "tuple": []}])
def test_what_is_never_written_is_not_read(encoded: Any) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        unflatten(encoded, {})
