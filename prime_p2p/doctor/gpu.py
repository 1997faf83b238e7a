"""Whether there is a GPU, and whether PyTorch can use it. PyTorch is only asked where there are signs of one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from prime_p2p.doctor.facts import Gpu, Unknown

_GRAPHICS = "0x03"  # PCI class of display controllers
_MAKERS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
_ANSWER = 65536  # characters that are looked at


class GpuProbe:
    """Asks PyTorch in a process of its own, beside whatever else is found out. Use it as a context manager."""

    def __init__(self, system: Path = Path("/")) -> None:
        self._found = signs(system)
        self._driver = driver(system)
        self._process: subprocess.Popen[str] | None = None
        if self._found:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "prime_p2p.doctor.gpu_probe"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )

    @property
    def asks(self) -> bool:
        """Whether there are signs of a GPU, so that PyTorch is asked."""
        return self._process is not None

    def result(self, timeout: float) -> Gpu | Unknown:
        """What came of it, after ``timeout`` seconds at most."""
        if self._process is None:
            return Gpu()
        try:
            said, _ = self._process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            error = f"it has not answered within {timeout:.0f} s"
            return Gpu(self._found, driver=self._driver, error=error)
        return read(self._found, self._driver, said[:_ANSWER], self._process.returncode)

    def __enter__(self) -> GpuProbe:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def read(found: str, driver: str, said: str, code: int) -> Gpu:
    """The facts, from what the process said and how it ended."""
    try:
        answer: dict[str, Any] = json.loads(said)
    except ValueError:
        return Gpu(found, driver=driver, error=f"asking PyTorch for it ended with code {code}")
    return Gpu(found, driver=driver, **answer)


def signs(system: Path) -> str:
    """Where there are signs of a GPU: a device that programs can use, or else a card that nothing drives."""
    for pattern in ("dev/nvidia[0-9]*", "dev/kfd", "dev/dxg"):
        for device in sorted(system.glob(pattern)):
            return f"/{device.relative_to(system)}"
    for card in sorted(system.glob("sys/bus/pci/devices/*")):
        maker = _MAKERS.get(_content(card / "vendor"), "")
        if maker and _content(card / "class").startswith(_GRAPHICS):
            return f"a card of {maker}"
    return ""


def driver(system: Path) -> str:
    """The version of NVIDIA's driver, or "AMD" where there is theirs; "" for none."""
    version = re.search(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)", _content(system / "proc/driver/nvidia/version"))
    if version:
        return version[1]
    return "AMD" if (system / "dev/kfd").exists() else "of Windows" if (system / "dev/dxg").exists() else ""


def _content(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
