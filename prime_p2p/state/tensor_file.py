"""Tensors in a file of the safetensors format, written slice by slice.

The package's own ``save_file`` first makes bytes of all tensors in memory. A peer has no room for a second copy of its
model and optimizer; of a contiguous tensor, on whatever device, a slice of some megabytes is all that is copied here.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path

import torch

from prime_p2p.long_work import Advance, ignore

SLICE = 4 * 2**20  # bytes
_ALIGNMENT = 8  # of the first tensor in the file

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def size_of(tensors: Mapping[str, torch.Tensor]) -> int:
    """Bytes that tensors take in a file."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def write(path: Path, tensors: Mapping[str, torch.Tensor], advance: Advance = ignore) -> None:
    """Write a new file, which ``safetensors`` reads; views of the same memory become tensors of their own.

    What is in the file when this returns is in the system's cache of files, and not yet on the disk. Raises OSError,
    and TypeError for a dtype that cannot be written.
    """
    header = _header(tensors)
    with path.open("xb") as file:
        file.write(header)
        for tensor in tensors.values():
            flat = tensor.detach().reshape(-1)
            count = max(1, SLICE // flat.element_size())
            for part in flat.split(count):
                data = part.cpu().contiguous().view(torch.uint8).numpy().data
                file.write(data)
                advance(len(data))


def _header(tensors: Mapping[str, torch.Tensor]) -> bytes:
    entries, end = {}, 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise TypeError(f"a tensor of {tensor.dtype} cannot be written to a checkpoint")
        start, end = end, end + math.prod(tensor.shape) * tensor.element_size()
        entries[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text
