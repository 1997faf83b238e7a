import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from prime_p2p.agreement import first_difference
from prime_p2p.errors import BadInput
from prime_p2p.recipe import DataRecipe, Recipe

TINY = Path(__file__).parents[2] / "peers" / "tiny.toml"

SMALLEST = """
[run]
name = "smallest"
[model]
hidden_size = 8
intermediate_size = 16
layers = 1
heads = 2
kv_heads = 1
context = 16
[inner]
learning_rate = 0.01
batch_size = 2
[round]
inner_steps = 3
"""


@pytest.fixture
def smallest(tmp_path: Path) -> Path:
    path = tmp_path / "smallest.toml"
    path.write_text(SMALLEST)
    return path


def refusal(path: str | Path, *overrides: str) -> str:
    """What a recipe that must be refused is refused with."""
    with pytest.raises(BadInput) as caught:
        Recipe.load(path, overrides)
    return str(caught.value)


def refusal_of(tmp_path: Path, old: str, new: str) -> str:
    """The same, for the smallest recipe with one piece of it replaced; without the path it must start with."""
    assert old in SMALLEST
    path = tmp_path / "wrong.toml"
    path.write_text(SMALLEST.replace(old, new))
    line = refusal(path)
    assert line.startswith(f"{path}: ")
    return line.removeprefix(f"{path}: ")


def test_the_recipe_that_ships_is_valid() -> None:
    assert Recipe.load(TINY).run.name == "tiny"


def test_what_a_recipe_leaves_out_has_defaults(smallest: Path) -> None:
    recipe = Recipe.load(smallest)
    assert recipe.model.vocab_size == 256
    assert recipe.data.source == "python-stdlib"
    assert (recipe.outer.learning_rate, recipe.outer.momentum) == (0.7, 0.9)
    assert recipe.round.start_with == 1
    assert recipe.round.codec == "int8"


def test_a_recipe_cannot_be_changed(smallest: Path) -> None:
    recipe = Recipe.load(smallest)
    with pytest.raises(ValidationError, match="frozen"):
        recipe.run.seed = 3


def test_overrides_win_over_the_file_and_the_last_one_over_the_others(smallest: Path) -> None:
    recipe = Recipe.load(smallest, ["run.seed=1", "inner.betas=[0.8, 0.9]", "outer.momentum = 0", "run.seed=2"])
    assert recipe.run.seed == 2
    assert recipe.inner.betas == (0.8, 0.9)
    assert recipe.outer.momentum == 0.0


@pytest.mark.parametrize(
    ("value", "source"),
    [
        ("/data/some text", "/data/some text"),
        ('"quoted"', "quoted"),
        ("2024", "2024"),
        ("a=b", "a=b"),
        ("x # y", "x # y"),
    ],
)
def test_text_in_an_override_needs_no_quotes(smallest: Path, value: str, source: str) -> None:
    assert Recipe.load(smallest, [f"data.source={value}"]).data.source == source


def test_inner_steps_change_at_the_outer_steps_of_their_schedule_and_are_counted_exactly(smallest: Path) -> None:
    schedule = Recipe.load(smallest, ["round.inner_steps_schedule=[[2, 50], [5, 7]]"]).round
    by_step = [3, 3, 50, 50, 50, 7, 7, 7]
    assert [schedule.inner_steps_at(step) for step in range(8)] == by_step
    assert [schedule.inner_steps_before(step) for step in range(9)] == [sum(by_step[:step]) for step in range(9)]


def test_a_schedule_from_outer_step_0_on_leaves_nothing_to_inner_steps(smallest: Path) -> None:
    schedule = Recipe.load(smallest, ["round.inner_steps_schedule=[[0, 50], [2, 7]]"]).round
    assert [schedule.inner_steps_at(step) for step in range(4)] == [50, 50, 7, 7]
    assert [schedule.inner_steps_before(step) for step in range(5)] == [0, 50, 100, 107, 114]


def test_without_a_schedule_all_outer_steps_are_equally_far_apart(smallest: Path) -> None:
    constant = Recipe.load(smallest).round
    assert (constant.inner_steps_at(10**9), constant.inner_steps_before(10**9)) == (3, 3 * 10**9)


def test_an_override_can_fill_a_section_that_the_file_leaves_out(smallest: Path) -> None:
    assert Recipe.load(smallest, ["eval.every=7"]).eval.every == 7


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("learning_rate = 0.01", "learning_rate = -1", "inner.learning_rate: must be greater than 0 (got -1)"),
        ("learning_rate = 0.01", "learning_rate = nan", "inner.learning_rate: must be a finite number (got nan)"),
        ("learning_rate = 0.01", 'learning_rate = "1"', 'inner.learning_rate: must be a number (got "1")'),
        ("layers = 1", "layers = 0", "model.layers: must be greater than 0 (got 0)"),
        ("layers = 1", "layers = 1.5", "model.layers: must be a whole number (got 1.5)"),
        ("layers = 1", "layers = true", "model.layers: must be a whole number (got true)"),
        ("layers = 1", "layers = [1]", "model.layers: must be a whole number (got [1])"),
        ("layers = 1", "", "model.layers: is missing"),
        ("heads = 2", "heads = 3", "model.hidden_size: must be divisible by model.heads (got 8 and 3)"),
        ("kv_heads = 1", "kv_heads = 3", "model.kv_heads: must divide model.heads (got 3 and 2)"),
        ("context = 16", "context = 16777217", "model.context: must be at most 16777216 (got 16777217)"),
        ("context = 16", "context = 1", "model.context: must be at least 2 (got 1)"),
        ('"smallest"', '"a b"', "run.name: must start with a letter or digit and hold at most 64 letters"),
        ("[run]", "[run]\nseed = -1", "run.seed: must be at least 0 (got -1)"),
        ("[inner]", "[inner]\nbetas = [0.9]", "inner.betas: has too few values (got [0.9])"),
        ("[inner]", "[inner]\nbetas = [0.9, 1.0]", "inner.betas[1]: must be less than 1 (got 1.0)"),
        ("[inner]", "[inner]\nbetas = [0.9, 0.9, 0.9]", "inner.betas: must have 2 values (got [0.9, 0.9, 0.9])"),
        ("[inner]", '[inner]\nbetas = "ab"', 'inner.betas: must be a list (got "ab")'),
        (
            "[inner]",
            '[inner]\noptimizer = "lion"',
            "inner.optimizer: must be 'adamw', 'adamw8bit', 'muon' or 'sgd' (got",
        ),
        ("[inner]", '[inner]\nschedule = "cosine"', "inner.total_steps: must be greater than inner.warmup_steps"),
        (
            "[inner]",
            '[inner]\nschedule = "wsd"',
            "inner.decay_steps: must be greater than 0 for a wsd schedule (got 0)",
        ),
        (
            "[inner]",
            '[inner]\nschedule = "wsd"\nwarmup_steps = 5\ndecay_steps = 6\ntotal_steps = 10',
            "inner.total_steps: must be at least inner.warmup_steps and inner.decay_steps together (got 10, 5 and 6)",
        ),
        ("[inner]", "[inner]\naccumulation = 3", "inner.accumulation: must divide inner.batch_size (got 3 and 2)"),
        ("[round]", '[outer]\nschedule = "linear"\n[round]', "outer.total_steps: must be greater than 0 for a linear"),
        (
            "[round]",
            "[round]\ninner_steps_schedule = [[5, 1], [5, 2]]",
            "round.inner_steps_schedule: must have outer steps that rise from pair to pair (got [5, 5])",
        ),
        (
            "[round]",
            "[round]\ninner_steps_schedule = [[5, 0]]",
            "round.inner_steps_schedule[0][1]: must be greater than 0 (got 0)",
        ),
        (
            "[round]",
            "[round]\ninner_steps_schedule = [[5]]",
            "round.inner_steps_schedule[0]: has too few values (got [5])",
        ),
        ("[round]", "[round]\nstart_with = 33", "round.start_with: must be at most round.max_group (got 33 and 32)"),
        ("[round]", "[round]\nexplosion_factor = 1.5", "round.explosion_factor: must be 0 or at least 2 (got 1.5)"),
        ("[round]", '[round]\ncodec = "int3"', "round.codec: must be 'int8' or 'int4' (got \"int3\")"),
        (
            "[round]",
            '[logging]\nwandb = "a/b"\n[round]',
            "logging.wandb: must have at most 128 characters, and none of /",
        ),
        ("[round]", '[logging]\ntensorboard = "\\u0000"\n[round]', "logging.tensorboard: must be the name of a fol"),
        ("[round]", '[logging]\nwandb_mode = "on"\n[round]', "logging.wandb_mode: must be 'offline' or 'online' (got"),
        ("[round]", "[round]\ncodec = 4", "round.codec: must be 'int8' or 'int4' (got 4)"),
        ("[round]", "[round]\npatience = inf", "round.patience: must be a finite number (got inf)"),
        ("[run]", "outer = 3\n[run]", "outer: must be a table (got 3)"),
        ("[run]", "[data]\nvalidation_share = 1.0\n[run]", "data.validation_share: must be less than 1 (got 1.0)"),
        ("[run]", '[data]\nsource = ""\n[run]', 'data.source: must not be empty (got "")'),
        (
            "[run]",
            '[data]\nformat = "jsonl"\n[run]',
            'data.format: must be "text" where data.source is "python-stdlib" (got "jsonl")',
        ),
        (
            "[run]",
            "[data]\nrecords = 5\n[run]",
            "data.records: must be 0 where files are documents; exclude some of them (got 5)",
        ),
        (
            "[run]",
            '[data]\nmirror = "c4"\n[run]',
            'data.mirror: stands for a data.source that begins with "hf:" (got "python-stdlib")',
        ),
        ('[run]\nname = "smallest"', "", "run: this section is missing"),
    ],
)
def test_a_wrong_value_is_refused_with_file_key_and_reason(tmp_path: Path, old: str, new: str, reason: str) -> None:
    line = refusal_of(tmp_path, old, new)
    assert line.startswith(reason)
    assert "\n" not in line


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("learning_rate", "learnin_rate", "inner.learnin_rate: unknown key (did you mean inner.learning_rate?)"),
        ("[inner]", "[iner]", "iner: unknown section (did you mean inner?)"),
        ("[run]", "[run]\nmomentum = 0.9", "run.momentum: unknown key (did you mean outer.momentum?)"),
        ("[run]", "[run]\nzzz = 1", "run.zzz: unknown key"),
        ("[run]", '[run]\n"a\\nb\\u001b" = 1', "run.'a\\nb\\x1b': unknown key"),
    ],
)
def test_an_unknown_key_is_refused_with_what_was_probably_meant(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    line = refusal_of(tmp_path, old, new)
    assert line.partition(";")[0] == reason


def test_several_mistakes_are_counted(tmp_path: Path) -> None:
    line = refusal_of(tmp_path, "layers = 1\nheads = 2", "layers = 0\nheads = 0")
    assert line == "model.layers: must be greater than 0 (got 0); and 1 more"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nowhere.toml") == f"{tmp_path / 'nowhere.toml'}: no such file"


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path}: cannot be read: Is a directory"


def test_wrong_toml_is_refused_with_its_line(tmp_path: Path) -> None:
    assert refusal_of(tmp_path, "layers = 1", "layers = ").startswith("is not TOML: Invalid value (at line 7, ")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"seed = " + b"9" * 5000, b"a = " + b"[" * 10_000])
def test_a_file_of_nonsense_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "nonsense.toml"
    path.write_bytes(content)
    line = refusal(path)
    assert line.startswith(f"{path}: is not ")
    assert "\n" not in line
    assert len(line) < len(str(path)) + 200


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("inner.learning_rate=-1", "--set inner.learning_rate: must be greater than 0 (got -1)"),
        ("inner.learning_rate=fast", '--set inner.learning_rate: must be a number (got "fast")'),
        ("inner.learning_rate=", '--set inner.learning_rate: must be a number (got "")'),
        ("inner.batch_size=2\nclip=3", '--set inner.batch_size: must be a whole number (got "2\\nclip=3")'),
        ("inner.learnin_rate=1", "--set inner.learnin_rate: unknown key (did you mean inner.learning_rate?)"),
        ("iner.learning_rate=1", "--set iner.learning_rate: unknown key (did you mean inner.learning_rate?)"),
        ("inner=1", "--set inner=1: must be section.key=value, as in inner.learning_rate=0.001"),
        ("round.codec=int3", "--set round.codec: must be 'int8' or 'int4' (got \"int3\")"),
        ("inner.clip", "--set inner.clip: must be section.key=value, as in inner.learning_rate=0.001"),
        (".clip=1", "--set .clip=1: must be section.key=value, as in inner.learning_rate=0.001"),
    ],
)
def test_a_wrong_override_is_refused_by_its_name(smallest: Path, override: str, reason: str) -> None:
    assert refusal(smallest, override) == reason


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_override_gives_a_recipe_or_one_line(target: str, value: str) -> None:
    outcome = "a recipe"
    try:
        Recipe.load(TINY, [f"{target}={value}", f"model.layers={value}", f"data.source={value}"])
    except BadInput as error:
        outcome = str(error)
    assert len(outcome.splitlines()) == 1


def test_what_peers_share_is_everything_but_housekeeping(smallest: Path) -> None:
    shared = Recipe.load(smallest).shared()
    assert set(shared) == {"run", "model", "data", "inner", "outer", "round"}
    assert set(shared["run"]) == {"name", "seed"}
    assert set(shared["data"]) == set(DataRecipe.model_fields) - {"licence", "mirror", "tokenizer", "cache"}
    assert shared["inner"]["betas"] == [0.9, 0.95]


def test_what_peers_share_survives_the_wire(smallest: Path) -> None:
    shared = Recipe.load(smallest, ["data.exclude=['a*']"]).shared()
    assert json.loads(json.dumps(shared)) == shared
    assert msgpack.unpackb(msgpack.packb(shared)) == shared


@pytest.mark.parametrize(
    "override",
    [
        "run.outer_steps=9",
        "eval.every=3",
        "checkpoint.keep=9",
        "inner.accumulation=2",
        "round.explosion_factor=0",
        "data.licence=PSF",
        "logging.wandb=project",
    ],
)
def test_peers_may_differ_in_housekeeping(smallest: Path, override: str) -> None:
    assert first_difference(Recipe.load(smallest).shared(), Recipe.load(smallest, [override]).shared()) is None


@pytest.mark.parametrize(
    ("override", "difference"),
    [
        ("inner.learning_rate=1", "inner.learning_rate: 0.01 here, 1.0 there"),
        ("round.codec=int4", 'round.codec: "int8" here, "int4" there'),
        ("round.inner_steps_schedule=[[7, 9]]", "round.inner_steps_schedule: [] here, [[7, 9]] there"),
        ("run.name=other", 'run.name: "smallest" here, "other" there'),
        ("data.exclude=['a*']", "data.exclude: [] here, ['a*'] there"),
    ],
)
def test_a_difference_names_the_key_and_both_values(smallest: Path, override: str, difference: str) -> None:
    assert first_difference(Recipe.load(smallest).shared(), Recipe.load(smallest, [override]).shared()) == difference


def test_a_key_that_one_side_lacks_is_a_difference(smallest: Path) -> None:
    shared = Recipe.load(smallest).shared()
    without = {section: content for section, content in shared.items() if section != "outer"}
    assert first_difference(shared, without) == 'outer.optimizer: "nesterov" here, not set there'
    assert first_difference(without, shared) == 'outer.optimizer: not set here, "nesterov" there'


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text() | st.integers(), inside, max_size=3),
    max_leaves=4,
)


@given(st.dictionaries(st.text(), PLAIN, max_size=3))
def test_whatever_the_other_side_claims_the_difference_is_one_short_line(theirs: dict[str, Any]) -> None:
    difference = first_difference(Recipe.load(TINY).shared(), theirs)
    assert difference is not None
    assert len(difference.splitlines()) == 1
    assert len(difference) < 1000


@pytest.mark.parametrize("path", sorted(TINY.parent.glob("*.toml")), ids=lambda path: path.stem)
def test_a_recipe_that_is_written_reads_as_the_same(path: Path, tmp_path: Path) -> None:
    recipe = Recipe.load(
        path, ['data.licence="a \\"b\\" \\\\ \\u202e \\u0007 \U0001f600"', "inner.learning_rate=1e-05"]
    )
    (tmp_path / "again.toml").write_text(recipe.to_toml(), encoding="utf-8")
    assert Recipe.load(tmp_path / "again.toml") == recipe
    assert all(line.isprintable() for line in recipe.to_toml().splitlines())


def test_reading_a_recipe_loads_no_array_library() -> None:
    program = "import sys, prime_p2p.recipe; print({'torch', 'transformers', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "set()\n"
