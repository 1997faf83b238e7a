"""Compiles the kernels (prime_p2p/kernels) when the package is installed, where there is a C compiler.

Without one the package is installed all the same, and works with NumPy. ``python hatch_build.py`` compiles in place.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = Path(__file__).parent / "prime_p2p" / "kernels"
MACHINE = "x86_64"
# Each multiply and each add is to be rounded by itself, hence no contraction; AVX2 alone brings no fused ones either.
FLAGS = ["-std=c11", "-O3", "-mavx2", "-ffp-contract=off", "-fPIC", "-shared"]
WITHIN = 120  # seconds for the compiler


class CompileKernels(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Put the library into the wheel, which is then one for this kind of machine."""
        library = compile_kernels(KERNELS)
        if library is None:
            self.app.display_warning("the kernels could not be compiled: prime-p2p will use NumPy")
            return
        build_data["artifacts"].append(str(library.relative_to(self.root)))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{MACHINE}"


def compile_kernels(folder: Path) -> Path | None:
    """Compile the source in ``folder``; returns the library, beside it, or None where that cannot be done here."""
    if platform.machine() != MACHINE:
        return None
    source, library = folder / "kernels.c", folder / "kernels.so"
    try:
        digest = hashlib.sha256(source.read_bytes()).hexdigest()
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            made = Path(temporary) / library.name
            command = [*shlex.split(os.environ.get("CC", "cc")), *FLAGS, f'-DSOURCE="{digest}"', str(source)]
            subprocess.run([*command, "-o", str(made), "-lm"], timeout=WITHIN, check=True)
            made.replace(library)  # in one step: a peer that runs may have the one before in its memory
    except (OSError, subprocess.SubprocessError):
        return None
    return library


if __name__ == "__main__":
    print(compile_kernels(KERNELS) or "the kernels could not be compiled")
