"""Files of tensors: what is written is what the safetensors package reads."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from prime_p2p.state import tensor_file

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
]


def same(found: torch.Tensor, written: torch.Tensor) -> bool:
    plain = written.contiguous().reshape(-1).view(torch.uint8)
    return (
        (found.dtype, found.shape) == (written.dtype, written.shape)
        and torch.equal(found.reshape(-1).view(torch.uint8), plain)  # bit by bit: NaN is not equal to itself
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_every_kind_are_read_bit_by_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    random = torch.randint(0, 2, (5, 7)) if dtype is torch.bool else torch.randint(-100, 100, (5, 7))
    tensors = {
        "matrix": random.to(dtype),
        "scalar": torch.tensor(1).to(dtype),
        "empty": torch.empty(0, 4, dtype=dtype),
        "with a long name and 'quotes\" \n": torch.ones(3, dtype=dtype),
    }
    tensor_file.write(tmp_path / "file", tensors)
    found = load_file(tmp_path / "file")
    assert found.keys() == tensors.keys()
    assert all(same(found[name], tensors[name]) for name in tensors)


def test_a_tensor_is_the_same_however_many_slices_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"a": torch.randn(1000), "b": torch.randn(3, 5).to(torch.bfloat16), "c": torch.tensor([float("nan")])}
    for size in (1, 8, 12, 4000, 4004):
        monkeypatch.setattr(tensor_file, "SLICE", size)
        tensor_file.write(tmp_path / str(size), tensors)
        found = load_file(tmp_path / str(size))
        assert all(same(found[name], tensors[name]) for name in tensors), size


def test_views_of_the_same_memory_are_written_apart(tmp_path: Path) -> None:
    base = torch.arange(10.0)
    views = {"part": base[2:4], "whole": base, "shaped": base.view(2, 5), "every other": base[::2]}
    tensor_file.write(tmp_path / "file", views)
    found = load_file(tmp_path / "file")
    assert all(same(found[name], views[name]) for name in views)


def test_parameters_with_gradients_can_be_written(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.ones(4))
    tensor_file.write(tmp_path / "file", {"weight": parameter})
    assert load_file(tmp_path / "file")["weight"].tolist() == [1.0] * 4


def test_no_more_than_a_slice_is_copied(tmp_path: Path) -> None:
    tensors = {str(i): torch.zeros(2**21) for i in range(4)}  # 8 MiB each
    tracemalloc.start()
    try:
        tensor_file.write(tmp_path / "file", tensors)
        assert tracemalloc.get_traced_memory()[1] < 2**20  # of Python; a slice on the CPU is no copy at all
    finally:
        tracemalloc.stop()


def test_a_kind_that_the_format_does_not_know_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="complex64"):
        tensor_file.write(tmp_path / "file", {"a": torch.zeros(2, dtype=torch.complex64)})


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError):
        tensor_file.write(tmp_path / "file", {})
