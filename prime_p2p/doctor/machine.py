"""Facts about this machine that need neither the network nor any package: what is wrong may be that one is missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from prime_p2p.doctor.facts import Folder, Kernels, Machine, Package, Python, Space, Unknown
from prime_p2p.peer_folder import in_use

_US = "prime_p2p"


def look(directory: Path) -> Machine:
    """The facts, for a peer with this folder."""
    return Machine(python(), packages(), kernels(), memory(), disk(directory), folder(directory))


def python() -> Python:
    version = platform.python_version()
    try:
        wanted = importlib.metadata.metadata(_US)["Requires-Python"] or ""
    except importlib.metadata.PackageNotFoundError:
        wanted = ""
    return Python(version, platform.system(), platform.machine(), wanted, _fits(version, wanted) is not False)


def packages() -> list[Package] | Unknown:
    """Each package that prime-p2p names, with its range and the installed version. None of them is imported."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return Unknown("the package named packaging is missing, so no versions can be compared: pip install packaging")
    try:
        lines = importlib.metadata.requires(_US) or []
    except importlib.metadata.PackageNotFoundError:
        return Unknown("prime-p2p is not installed as a package, so its ranges are not known: pip install it")
    needed = [one for one in map(Requirement, lines) if one.marker is None or one.marker.evaluate({"extra": ""})]
    return [_package(one.name, str(one.specifier)) for one in needed]


def _package(name: str, wanted: str) -> Package:
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Package(name, wanted, None, False)
    return Package(name, wanted, found, _fits(found, wanted) is not False)


def _fits(version: str, wanted: str) -> bool | None:
    """Whether a version is in a range; None where nobody can tell."""
    try:
        from packaging.specifiers import SpecifierSet

        return SpecifierSet(wanted).contains(version, prereleases=True)
    except (ImportError, ValueError):  # a version that is none, as "3.13.0+" of a Python that somebody built
        return None


def kernels() -> Kernels | Unknown:
    """Whether the arithmetic of a round is compiled."""
    try:
        from prime_p2p.kernels import compiled
    except ImportError as error:  # NumPy is missing, say
        return Unknown(f"their code cannot be loaded: {error}")
    return Kernels(compiled.ABSENT)


def memory() -> Space | Unknown:
    """Memory that programs can still have: of this machine, or of the container that this process is in."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free, total = (int(lines[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    except (OSError, KeyError, ValueError):
        return Unknown("this system does not say how much memory is free")
    for limit, used in _memory_limits():
        free, total = min(free, max(0, limit - used)), min(total, limit)
    return Space(free, total)


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Of each control group around this process that has a limit: that, and what counts against it."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    root = Path("/sys/fs/cgroup")
    inner = next((line[3:] for line in lines if line.startswith("0::")), "/")
    place = root / inner.lstrip("/")
    for group in (place, *place.parents):
        if not group.is_relative_to(root):
            break
        try:
            limit = int((group / "memory.max").read_text())
            cached = re.search(r"^inactive_file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
            yield limit, int((group / "memory.current").read_text()) - (int(cached[1]) if cached else 0)
        except (OSError, ValueError):  # there is no such group here, or it has no limit ("max")
            continue


def disk(directory: Path) -> Space | Unknown:
    """Room in the file system that a folder is in, or would be."""
    try:
        usage = shutil.disk_usage(_existing(directory))
    except OSError as error:
        return Unknown(f"it cannot be asked: {error.strerror}")
    return Space(usage.free, usage.total)


def folder(directory: Path) -> Folder:
    """Whether a peer could write there. Nothing is left behind."""
    existing = _existing(directory)
    error = ""
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
    except OSError as failure:
        error = failure.strerror or str(failure)
    return Folder(directory, directory.is_dir(), in_use(directory), error)


def _existing(directory: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    here = directory.absolute()
    return next((place for place in (here, *here.parents) if os.path.lexists(place)), here)
