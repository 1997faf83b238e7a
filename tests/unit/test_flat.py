from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from prime_p2p.errors import BadInput
from prime_p2p.training.flat import FlatParameters
from prime_p2p.training.ranks import sharding


class Model(torch.nn.Module):
    """Parameters of 6, 4, 1 and 15 elements, one of them tied and one frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
        self.second = torch.nn.Parameter(torch.arange(6.0, 10.0))
        self.frozen = torch.nn.Parameter(torch.full((7,), -1.0), requires_grad=False)
        self.scalar = torch.nn.Parameter(torch.tensor(10.0))
        self.tied = self.first
        self.last = torch.nn.Parameter(torch.arange(11.0, 26.0).reshape(3, 5))


def test_the_vector_is_the_trainable_parameters_in_their_order_and_a_tied_one_once() -> None:
    parameters = FlatParameters(Model())
    assert parameters.n == 26
    assert parameters.to_numpy().tolist() == list(range(26))


@given(start=st.integers(0, 25), length=st.integers(0, 26))
def test_any_slice_can_be_read_and_written(start: int, length: int) -> None:
    parameters = FlatParameters(Model())
    length = min(length, 26 - start)
    out = np.empty(length, np.float32)
    parameters.read(start, out)
    assert out.tolist() == list(range(start, start + length))
    parameters.write(start, -out - 1)
    whole = parameters.to_numpy()
    assert whole[start : start + length].tolist() == [-1 - i for i in range(start, start + length)]
    assert whole[:start].tolist() == list(range(start))
    assert whole[start + length :].tolist() == list(range(start + length, 26))


def test_what_is_written_is_what_the_model_computes_with() -> None:
    model = Model()
    FlatParameters(model).write(0, np.zeros(26, np.float32))
    assert model.first.abs().sum() == 0
    assert model.last.abs().sum() == 0
    assert model.frozen.sum() == -7


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_vector_is_added_or_taken_away(sign: float) -> None:
    parameters = FlatParameters(Model())
    parameters.add(np.arange(26, dtype=np.float32), sign)
    assert parameters.to_numpy().tolist() == [i + sign * i for i in range(26)]


def test_parameters_of_lower_precision_are_read_as_float32() -> None:
    model = torch.nn.Linear(3, 2).to(torch.bfloat16)
    parameters = FlatParameters(model)
    expected = torch.cat([model.weight.detach().flatten(), model.bias.detach()]).float()
    assert torch.equal(torch.from_numpy(parameters.to_numpy()), expected)


def test_an_element_is_named_by_the_parameter_it_belongs_to() -> None:
    parameters = FlatParameters(Model())
    names = [parameters.name_of(index) for index in range(26)]
    assert names == ["first"] * 6 + ["second"] * 4 + ["scalar"] + ["last"] * 15


def test_the_layout_tells_models_apart_by_name_and_shape() -> None:
    layouts = {
        FlatParameters(model).layout
        for model in (torch.nn.Linear(3, 2), torch.nn.Linear(2, 3), torch.nn.Conv1d(1, 2, 3))
    }
    assert len(layouts) == 3
    assert FlatParameters(torch.nn.Linear(3, 2)).layout in layouts


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(BadInput, match="no parameter to train"):
        FlatParameters(torch.nn.ReLU())


def test_a_parameter_that_is_not_contiguous_is_refused_by_name() -> None:
    model = torch.nn.Module()
    model.odd = torch.nn.Parameter(torch.zeros(4, 3).t())
    with pytest.raises(BadInput, match="odd"):
        FlatParameters(model)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_what_the_ranks_of_a_sharded_model_have_is_the_whole_vector_once(ranks: int) -> None:
    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.ModuleList([torch.nn.Linear(3, 5), torch.nn.Linear(5, 1)]))

    whole = FlatParameters(model())
    found, written = np.zeros(whole.n, np.float32), np.zeros(whole.n, np.float32)
    for rank in range(ranks):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
        try:
            sharded = model()
            sharding.shard(sharded, init_device_mesh("cpu", (ranks,)))
            parameters = FlatParameters(sharded)
            assert (parameters.n, parameters.layout) == (whole.n, whole.layout)
            found += own(parameters)
            parameters.write(0, np.arange(1, whole.n + 1, dtype=np.float32))
            written += own(parameters)
        finally:
            dist.destroy_process_group()
    assert np.array_equal(found, whole.to_numpy())
    assert written.tolist() == list(range(1, whole.n + 1))


def own(parameters: FlatParameters) -> np.ndarray:
    """What this rank has of the vector, and 0 elsewhere; read in two parts."""
    out = np.zeros(parameters.n, np.float32)
    for part in (out[:7], out[7:]):
        parameters.read(0 if len(part) == 7 else 7, part)
    return out


def test_a_model_without_values_keeps_its_buffers_and_its_tied_parameters() -> None:
    with sharding.without_values():
        model = Model()
        norm = torch.nn.BatchNorm1d(2)
    assert all(parameter.is_meta for parameter in [*model.parameters(), *norm.parameters()])
    assert model.tied is model.first
    assert norm.running_var is not None
    assert norm.running_var.tolist() == [1.0, 1.0]
    assert not torch.nn.Linear(1, 1).weight.is_meta
