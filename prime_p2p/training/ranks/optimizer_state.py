"""The state of an inner optimizer over sharded parameters, to and from the state it has over whole ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

State = dict[str, Any]
"""As ``state_dict`` of an optimizer returns it."""


def whole(state: State, *, keep: bool) -> State:
    """The state with whole tensors, on the CPU, at a rank that is to ``keep`` it, and with none at the others. All
    ranks gather it together, one tensor at a time."""
    gathered = {
        index: {name: _whole(value, keep=keep) for name, value in values.items()}
        for index, values in state["state"].items()
    }
    return state | {"state": gathered}


def load(optimizer: torch.optim.Optimizer, state: State) -> None:
    """Take this rank's shard of a whole state. At rank 0 it has its tensors, at the others the ``skeleton``'s; all
    ranks do this together."""
    sharded = {index: dict(values) for index, values in state["state"].items()}
    for index, name, parameter in _of_parameters(optimizer, state):
        value = sharded[index][name]
        here = torch.empty_like(value, device=parameter.device) if value.is_meta else value.to(parameter.device)
        sharded[index][name] = distribute_tensor(here, parameter.device_mesh, [Shard(0)])
    optimizer.load_state_dict(state | {"state": sharded})


def skeleton(optimizer: torch.optim.Optimizer, state: State) -> State:
    """A whole state whose tensors as large as a parameter are without memory: what ranks other than 0 load."""
    bare = {index: dict(values) for index, values in state["state"].items()}
    for index, name, _ in _of_parameters(optimizer, state):
        bare[index][name] = bare[index][name].to("meta")
    return state | {"state": bare}


def _whole(value: Any, *, keep: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    full = value.full_tensor() if isinstance(value, DTensor) else value
    return full.cpu() if keep else None


def _of_parameters(optimizer: torch.optim.Optimizer, state: State) -> Iterator[tuple[int, str, DTensor]]:
    """The tensors of a whole state that are sharded as their parameter is: its index, their name, the parameter."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and value.shape == parameters[index].shape:
                yield index, name, parameters[index]
