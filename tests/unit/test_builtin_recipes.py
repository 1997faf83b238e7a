from pathlib import Path

import pytest

from prime_p2p import builtin_recipes
from prime_p2p.builtin_recipes import find_recipe
from prime_p2p.errors import BadInput


def test_a_path_that_exists_is_taken_before_a_built_in_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny").touch()
    assert find_recipe("tiny") == Path("tiny")


@pytest.mark.parametrize("name", ["tiny", "tiny.toml", "peers/tiny.toml"])
def test_a_built_in_recipe_is_found_from_any_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_recipe(name).name == "tiny.toml"


def test_an_installed_wheel_has_its_recipes_beside_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "site-packages" / "prime_p2p"
    (installed / "recipes").mkdir(parents=True)
    (installed / "recipes" / "tiny.toml").touch()
    monkeypatch.setattr(builtin_recipes, "_FOLDERS", (installed / "recipes", installed.parent / "peers"))
    monkeypatch.chdir(tmp_path)
    assert find_recipe("peers/tiny.toml") == installed / "recipes" / "tiny.toml"


def test_what_is_neither_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(BadInput, match=r"huge: no such recipe; give the path of one, or one of: .*tiny"):
        find_recipe("huge")
