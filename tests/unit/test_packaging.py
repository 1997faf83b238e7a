"""What is in the wheel, and what a bootstrap node installs."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]

# Imports a bootstrap node where nothing but the given distributions seems to be installed.
IMPORT_A_BOOTSTRAP_NODE_WITH = """
import sys
from importlib.metadata import packages_distributions
from packaging.utils import canonicalize_name

owners = packages_distributions()

class Only:
    def find_spec(self, name, path=None, target=None):
        owned_by = {canonicalize_name(owner) for owner in owners.get(name.partition(".")[0], [])}
        if owned_by and owned_by.isdisjoint(sys.argv[1:]):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Only())
import prime_p2p.bootstrap_node, prime_p2p.cli, prime_p2p.status
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", folder], cwd=ROOT, check=True
    )
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def required_by_a_bootstrap_node() -> set[str]:
    lines = (ROOT / "bootstrap" / "requirements.txt").read_text().splitlines()
    named = [Requirement(line) for line in lines if not line.startswith("#")]
    return {canonicalize_name(one.name) for one in named if one.marker is None or one.marker.evaluate()}


def test_only_prime_p2p_can_be_imported_from_the_wheel(wheel: zipfile.ZipFile) -> None:
    top_level = {name.partition("/")[0] for name in wheel.namelist()}

    assert {name for name in top_level if not name.endswith(".dist-info")} == {"prime_p2p"}


def test_the_wheel_has_every_module_of_the_package(wheel: zipfile.ZipFile) -> None:
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "prime_p2p").rglob("*.py")}

    assert {name for name in wheel.namelist() if name.endswith(".py")} == modules


def test_the_wheel_brings_what_the_dashboard_serves(wheel: zipfile.ZipFile) -> None:
    folder = "prime_p2p/watching/dashboard"
    served = {path.name for path in (ROOT / folder).iterdir() if path.suffix in (".css", ".js", ".svg")}

    assert {Path(name).name for name in wheel.namelist() if name.startswith(folder)} >= served


def test_the_wheel_brings_all_recipes_and_says_that_it_is_typed(wheel: zipfile.ZipFile) -> None:
    brought = {
        name: wheel.read(f"prime_p2p/recipes/{name}")
        for name in (Path(name).name for name in wheel.namelist() if name.startswith("prime_p2p/recipes/"))
    }
    assert brought == {file.name: file.read_bytes() for file in (ROOT / "peers").glob("*.toml")}
    assert "prime_p2p/py.typed" in wheel.namelist()


def test_a_bootstrap_node_needs_no_more_than_its_requirements() -> None:
    command = [sys.executable, "-c", IMPORT_A_BOOTSTRAP_NODE_WITH, "prime-p2p", *required_by_a_bootstrap_node()]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert result.returncode == 0, result.stderr
