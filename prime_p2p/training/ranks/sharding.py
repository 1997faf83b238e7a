"""FSDP2 (``torch.distributed.fsdp.fully_shard``) between the ranks of a peer, and none of the network beyond."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

COLLECTIVE_DEADLINE = 120.0
"""Seconds for all ranks to come to one collective: they begin every inner step together."""


def join_group(store: Path, rank: int, ranks: int, device: torch.device) -> DeviceMesh:
    """Meet the other ranks, at a file in ``store``: by nccl between GPUs, otherwise by gloo, on this machine alone."""
    for backend in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{backend}_SOCKET_IFNAME", "lo")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=dist.FileStore(str(store / "group"), ranks),  # type: ignore[attr-defined]
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=COLLECTIVE_DEADLINE),
    )
    return init_device_mesh(device.type, (ranks,))


def leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def shard(model: torch.nn.Module, mesh: DeviceMesh) -> None:
    """Keep this rank's shard of every parameter, on its device; the layers are gathered one after the other when they
    are computed with. Parameters without a value stay so, but for their memory. All ranks do this, in no order."""
    for block in _blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    device = torch.device(mesh.device_type)

    def to_device(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.to(device)

    model._apply(to_device)


@contextmanager
def without_values() -> Iterator[None]:
    """Modules that are built in here have parameters without memory; buffers are what they always are."""
    register = torch.nn.Module.register_parameter

    def register_bare(self: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:  # a tied one is already, and has to stay the same object
            param = torch.nn.Parameter(param.to("meta"), requires_grad=param.requires_grad)
        register(self, name, param)

    torch.nn.Module.register_parameter = register_bare  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]


def _blocks(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The layers of a model: what its outermost lists of modules hold."""
    for child in module.children():
        yield from child if isinstance(child, torch.nn.ModuleList) else _blocks(child)
