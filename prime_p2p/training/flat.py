"""A model's trainable parameters as one flat float32 vector, read and written in place, slice by slice."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import torch
from blake3 import blake3
from torch.distributed.tensor import DTensor

from prime_p2p.allreduce.codec import Float32
from prime_p2p.errors import BadInput

SLICE = 1 << 20
"""Elements copied at a time where a whole vector is walked."""


class FlatParameters:
    """The trainable parameters of ``model`` in the order it names them; a tied parameter appears once.

    The vector has ``n`` elements. Buffers (running statistics and the like) are no part of it and are not shared.
    Of parameters that are sharded over the ranks of a peer, in their first dimension, a rank reads and writes the
    elements that it has and leaves the others as they are; the vector does not depend on the sharding.

    Raises BadInput for a model with nothing to train or with parameters that are not contiguous in memory.
    """

    slice: int = SLICE
    """Elements that ``add`` and ``equal`` take at a time."""

    def __init__(self, model: torch.nn.Module) -> None:
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        if not named:
            raise BadInput("the model has no parameter to train")
        for name, parameter in named:
            if not parameter.is_contiguous():
                raise BadInput(f"parameter {name} is not contiguous in memory; make it so before training")
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._starts = list(accumulate((parameter.numel() for parameter in self._parameters), initial=0))
        self.n = self._starts.pop()

    @property
    def device(self) -> torch.device:
        """Where the first parameter is."""
        return self._parameters[0].device

    @property
    def layout(self) -> str:
        """A hash of names and shapes: equal where two models have the same flat vector."""
        shapes = [(name, list(parameter.shape)) for name, parameter in zip(self._names, self._parameters, strict=True)]
        return blake3(repr(shapes).encode()).hexdigest(16)

    def name_of(self, index: int) -> str:
        """The parameter that element ``index`` of the vector belongs to."""
        return self._names[bisect_right(self._starts, index) - 1]

    def ranges(self) -> Iterator[tuple[str, int, int]]:
        """Each parameter: its name, and where its elements start and stop in the vector."""
        yield from zip(self._names, self._starts, [*self._starts[1:], self.n], strict=True)

    def read(self, start: int, out: Float32) -> None:
        """Copy elements ``start`` to ``start + len(out)`` into ``out``."""
        target = torch.from_numpy(out)
        for here, piece in self._pieces(start, len(out)):
            target[here : here + piece.numel()].copy_(piece)

    def write(self, start: int, values: Float32) -> None:
        """Set elements ``start`` to ``start + len(values)``."""
        source = torch.from_numpy(values)
        for here, piece in self._pieces(start, len(values)):
            piece.copy_(source[here : here + piece.numel()])

    def add(self, values: Float32, sign: float) -> None:
        """Add ``sign`` times the whole vector ``values`` (shape [n]) in place."""
        scratch = np.empty(min(self.slice, self.n), np.float32)
        for start in range(0, self.n, self.slice):
            part = scratch[: min(self.slice, self.n - start)]
            self.read(start, part)
            if sign > 0:
                part += values[start : start + len(part)]
            else:
                part -= values[start : start + len(part)]
            self.write(start, part)

    def equal(self, values: Float32) -> bool:
        """Whether the whole vector has the bytes of ``values`` (shape [n])."""
        scratch = np.empty(min(self.slice, self.n), np.float32)
        for start in range(0, self.n, self.slice):
            part = scratch[: min(self.slice, self.n - start)]
            self.read(start, part)
            if not np.array_equal(part.view(np.uint32), values[start : start + len(part)].view(np.uint32)):
                return False
        return True

    def to_numpy(self) -> Float32:
        """A copy of the whole vector, shape [n]."""
        out = np.empty(self.n, np.float32)
        self.read(0, out)
        return out

    def _pieces(self, start: int, length: int) -> Iterator[tuple[int, torch.Tensor]]:
        """The memory of this process behind a range of the vector: (offset in the range, flat view)."""
        stop = start + length
        index = bisect_right(self._starts, start) - 1
        while index < len(self._starts) and self._starts[index] < stop:
            offset, flat = _own(self._parameters[index])
            offset += self._starts[index]
            first, last = max(start, offset), min(stop, offset + len(flat))
            if first < last:
                yield first - start, flat[first - offset : last - offset]
            index += 1


def _own(parameter: torch.Tensor) -> tuple[int, torch.Tensor]:
    """The elements of a parameter that this process has, flat, and where they start in it."""
    if not isinstance(parameter, DTensor):
        return 0, parameter.detach().view(-1)
    rows = -(-parameter.shape[0] // parameter.device_mesh.size())  # as torch.chunk shares them out
    offset = min(rows * parameter.device_mesh.get_local_rank(), parameter.shape[0])
    return offset * math.prod(parameter.shape[1:]), parameter.to_local().detach().view(-1)
