"""Run in a process of its own: what PyTorch says of this machine's GPU, as a line of JSON.

A driver that hangs or crashes takes this process with it and nothing else.
"""

from __future__ import annotations

import json
from typing import Any


def probe() -> dict[str, Any]:
    """The fields of ``facts.Gpu`` that PyTorch knows."""
    try:
        import torch
    except ImportError as error:
        return {"error": f"PyTorch cannot be imported: {error}"}
    built_for = torch.version.cuda or getattr(torch.version, "hip", None)
    if built_for is None:
        return {"error": f"PyTorch {torch.__version__} is a build without CUDA"}
    try:
        torch.cuda.init()
        torch.ones(2, device="cuda").sum().item()
        found = torch.cuda.get_device_properties(0)
        bf16 = torch.cuda.is_bf16_supported()
    except (RuntimeError, AssertionError) as error:
        lines = str(error).splitlines()
        return {"cuda": built_for, "error": lines[0] if lines else type(error).__name__}
    return {
        "name": found.name,
        "count": torch.cuda.device_count(),
        "memory": found.total_memory,
        "cuda": built_for,
        "bf16": bf16,
    }


if __name__ == "__main__":
    print(json.dumps(probe()))
