from pathlib import Path

import pytest

from prime_p2p import builtin_recipes
from prime_p2p.builtin_recipes import find_recipe
from prime_p2p.errors import BadInput
from prime_p2p.recipe import Recipe


def test_a_path_that_exists_is_taken_before_a_built_in_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny").touch()
    assert find_recipe("tiny") == Path("tiny")


@pytest.mark.parametrize("name", ["tiny", "tiny.toml", "peers/tiny.toml"])
def test_a_built_in_recipe_is_found_from_any_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_recipe(name).name == "tiny.toml"


@pytest.mark.parametrize(
    "file", sorted((Path(__file__).parents[2] / "peers").glob("*.toml")), ids=lambda file: file.stem
)
def test_every_recipe_beside_the_code_is_found_by_its_name_and_valid(file: Path) -> None:
    assert find_recipe(file.stem) == file
    assert Recipe.load(file).data.validation_share < 0.5


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("150m", {"inner_steps": 500, "batch_size": 512, "context": 1024, "inner rate": 4e-4, "steps": 88_000}),
        ("1b", {"inner_steps": 125, "batch_size": 2048, "context": 1024, "inner rate": 4e-4, "steps": 88_000}),
        ("10b", {"inner_steps": 100, "batch_size": 128, "context": 8192, "inner rate": 7.5e-5, "steps": 90_400}),
        ("metagene-7b", {"inner_steps": 100, "batch_size": 30_720 // 32, "context": 512, "inner rate": 6e-4}),
    ],
)
def test_what_papers_published_is_in_the_recipes(name: str, published: dict[str, float]) -> None:
    recipe = Recipe.load(find_recipe(name))
    found = {
        "inner_steps": recipe.round.inner_steps,
        "batch_size": recipe.inner.batch_size,
        "context": recipe.model.context,
        "inner rate": recipe.inner.learning_rate,
        "steps": recipe.run.outer_steps * recipe.round.inner_steps,
    }
    assert found | published == found
    assert (recipe.outer.learning_rate, recipe.outer.momentum) == (0.7, 0.9)
    assert (recipe.inner.betas, recipe.inner.weight_decay) == ((0.9, 0.95), 0.1)
    assert recipe.inner.schedule == "constant" or recipe.inner.total_steps == found["steps"]


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
