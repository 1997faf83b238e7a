"""What the doctor finds out of this machine, and of others that are laid out in a folder."""

from __future__ import annotations

import importlib.metadata
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from prime_p2p.doctor import gpu, machine, network
from prime_p2p.doctor.examination import examine
from prime_p2p.doctor.facts import Gpu, Space
from prime_p2p.doctor.place import Place
from prime_p2p.errors import BadInput
from prime_p2p.network.identity import Identity
from prime_p2p.peer_folder import in_use, owned


def test_the_versions_here_are_within_the_ranges_of_the_package() -> None:
    assert machine.python().fits
    packages = machine.packages()
    assert isinstance(packages, list)
    found = {package.name: package for package in packages}
    assert {"hivemind", "torch", "transformers", "numpy", "protobuf", "uvloop"} <= set(found)
    assert "pytest" not in found  # of an extra
    assert [package for package in packages if not package.fits] == []


def test_a_package_of_another_version_or_none_does_not_fit() -> None:
    assert not machine._package("numpy", "<1.0").fits
    missing = machine._package("no-such-package-of-ours", ">=1")
    assert (missing.found, missing.fits) == (None, False)
    assert machine._package("numpy", f">={importlib.metadata.version('numpy')}").fits


def test_memory_and_disk_are_what_the_system_says(tmp_path: Path) -> None:
    for space in (machine.memory(), machine.disk(tmp_path / "not" / "yet")):
        assert isinstance(space, Space)
        assert 0 < space.free <= space.total


def test_a_folder_is_tried_without_a_trace(tmp_path: Path) -> None:
    there = machine.folder(tmp_path)
    assert (there.exists, there.in_use, there.error) == (True, False, "")
    new = machine.folder(tmp_path / "a" / "b")
    assert (new.exists, new.error) == (False, "")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("x")
    assert machine.folder(tmp_path / "file").error
    assert machine.folder(tmp_path / "file" / "below").error
    assert machine.folder(Path("/proc/prime-p2p")).error


def test_a_folder_that_a_peer_has_is_in_use_until_it_leaves(tmp_path: Path) -> None:
    assert not in_use(tmp_path)
    with owned(tmp_path / "peer"):
        assert in_use(tmp_path / "peer")
        assert machine.folder(tmp_path / "peer").in_use
        with pytest.raises(BadInput, match="in use by another peer"), owned(tmp_path / "peer"):
            pass
    assert not in_use(tmp_path / "peer")


def test_a_key_is_read_and_never_made(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    assert network.identity(path).peer_id == ""
    assert not path.exists()
    made = Identity.load_or_create(path)
    assert network.identity(path).peer_id == made.peer_id
    assert not network.identity(path).open_to_others
    path.chmod(0o640)
    assert network.identity(path).open_to_others
    path.write_bytes(b"something else")
    assert "not an Ed25519 key" in network.identity(path).error
    (tmp_path / "folder").mkdir()
    assert network.identity(tmp_path / "folder").error


def test_a_port_that_somebody_listens_at_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        assert "Address already in use" in network.port(("127.0.0.1",), number).error
    assert network.port(("127.0.0.1",), 0).error == ""


@pytest.mark.parametrize("group", [1, 2, 4, 32, 256])
def test_open_files_grow_with_the_group_and_everything_at_once_takes_more(group: int) -> None:
    fact = network.descriptors(group)
    assert fact.limit > 0
    others = max(1, group - 1)
    assert 4 * others < fact.needed < fact.most
    assert fact.most > 512


def test_where_hivemind_is_missing_the_rest_is_looked_at_all_the_same(tmp_path: Path) -> None:
    program = f"""
import sys
sys.modules["hivemind"] = None
from pathlib import Path
from prime_p2p.doctor.examination import examine
from prime_p2p.doctor.place import Place
found = {{one.name: one for one in examine(Path({str(tmp_path)!r}), Place(), lambda text: None)}}
print(found["folder"].result, found["swarm"].result, found["daemon"].result, found["daemon"].text)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok note problem the code of the network cannot be loaded")


@pytest.mark.parametrize("place", [Place(bootstrap=("nonsense",)), Place(hosts=("nonsense",))])
def test_an_address_that_is_none_is_refused_before_anything_is_started(place: Place, tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(BadInput, match="nonsense"):
        examine(tmp_path, place, said.append)
    assert said == []


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.mark.parametrize(
    ("files", "found", "driver"),
    [
        ({}, "", ""),
        ({"dev/nvidiactl": "", "dev/nvidia0": "", "dev/nvidia1": ""}, "/dev/nvidia0", ""),
        ({"dev/kfd": ""}, "/dev/kfd", "AMD"),
        (
            {
                "dev/nvidia0": "",
                "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15",
            },
            "/dev/nvidia0",
            "570.86.15",
        ),
        (
            {
                "dev/nvidia0": "",
                "proc/driver/nvidia/version": "NVRM version: Open Kernel Module for x86_64  590.12  Release Build",
            },
            "/dev/nvidia0",
            "590.12",
        ),
        (
            {"sys/bus/pci/devices/1/vendor": "0x10de\n", "sys/bus/pci/devices/1/class": "0x030200\n"},
            "a card of NVIDIA",
            "",
        ),
        ({"sys/bus/pci/devices/1/vendor": "0x10de\n", "sys/bus/pci/devices/1/class": "0x040300\n"}, "", ""),
        ({"sys/bus/pci/devices/1/vendor": "0x8086\n", "sys/bus/pci/devices/1/class": "0x030000\n"}, "", ""),
    ],
)
def test_signs_of_a_gpu_are_devices_and_cards(files: dict[str, str], found: str, driver: str, tmp_path: Path) -> None:
    lay_out(tmp_path, files)
    assert (gpu.signs(tmp_path), gpu.driver(tmp_path)) == (found, driver)


def test_pytorch_is_not_asked_where_there_is_no_sign_of_a_gpu(tmp_path: Path) -> None:
    with gpu.GpuProbe(tmp_path) as probe:
        assert not probe.asks
        assert probe.result(0.0) == Gpu()


def test_a_pytorch_that_does_not_answer_in_time_is_ended(tmp_path: Path) -> None:
    with gpu.GpuProbe(lay_out(tmp_path, {"dev/nvidia0": ""})) as probe:
        late = probe.result(0.01)
        assert isinstance(late, Gpu)
        assert "not answered" in late.error
        assert probe._process is not None
    assert probe._process.returncode is not None


def test_what_pytorch_says_is_read_also_where_it_crashes() -> None:
    said = json.dumps({"name": "H100", "count": 2, "memory": 80, "cuda": "12.8", "bf16": True})
    assert gpu.read("/dev/nvidia0", "590.12", said, 0) == Gpu("/dev/nvidia0", "H100", 2, 80, "590.12", "12.8", True)
    assert "ended with code -11" in gpu.read("/dev/nvidia0", "590.12", "", -11).error


def test_a_pytorch_that_sees_no_gpu_says_why() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "prime_p2p.doctor.gpu_probe"],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    assert gpu.read("/dev/nvidia0", "", done.stdout, done.returncode).error
