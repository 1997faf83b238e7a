"""What a user makes of a peer's folder: a model to open elsewhere, text, and an audit."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from peer_folders import Made, make, small_recipe
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from prime_p2p import cli
from prime_p2p.errors import BadInput
from prime_p2p.recipe import Recipe
from prime_p2p.training import model as models
from prime_p2p.training.flat import FlatParameters
from prime_p2p.training.generate import complete
from prime_p2p.training.saved_model import newest_checkpoint, recipe_of, saved_model

Cli = Callable[..., int]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("peer"), 3, saved=(2, 3))


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    recipe = small_recipe()
    return models.build(recipe.model, recipe.run.seed).eval()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Cli:
    def run_with(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["prime-p2p", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0)

    return run_with


def test_the_model_of_a_folder_is_the_newest_anchor_and_needs_no_recipe_file(made: Made) -> None:
    checkpoint = newest_checkpoint(made.folder)
    assert recipe_of(checkpoint).shared() == small_recipe().shared()
    assert np.array_equal(FlatParameters(saved_model(checkpoint)).to_numpy(), made.anchor)


def test_the_folder_of_a_training_loop_without_a_recipe_is_refused() -> None:
    with pytest.raises(BadInput, match="the description of the run: run: this section is missing"):
        Recipe.from_shared({"round": {"inner_steps": 5}})


def test_export_writes_what_transformers_opens_without_this_project(made: Made, tmp_path: Path, run: Cli) -> None:
    assert run("export", made.folder, tmp_path / "out") == 0
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert np.array_equal(FlatParameters(opened).to_numpy(), made.anchor)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("größer")["input_ids"] == list("größer".encode())
    assert tokenizer.decode(list("größer".encode())) == "größer"


def test_generate_completes_a_text_the_same_way_for_the_same_seed(
    made: Made, run: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = []
    for seed in (1, 1, 2):
        assert run("generate", made.folder, "def f(", "--tokens", 40, "--temperature", 1, "--seed", seed) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    assert all(text.startswith("def f(") for text in texts)


def test_the_likeliest_bytes_need_no_luck_and_are_those_that_transformers_generates(model: LlamaForCausalLM) -> None:
    tokens = torch.tensor([[0, *b"abc"]])
    expected = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=10, do_sample=False)
    text = bytes(expected[0, 4:].tolist()).split(b"\0")[0].decode("utf-8", "replace")
    assert complete(model, "abc", tokens=10, temperature=0, seed=1) == text
    assert complete(model, "abc", tokens=10, temperature=0, seed=2) == text


@pytest.mark.parametrize("text", ["", "x" * 100, "größer", "\udcff"])
def test_any_text_can_be_gone_on_with_beyond_the_context_too(model: LlamaForCausalLM, text: str) -> None:
    complete(model, text, tokens=40, temperature=1.0, seed=1)


def test_a_model_that_ends_its_text_adds_no_more(model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_to_come = iter([*b"end", 0, *b"more"])
    monkeypatch.setattr("prime_p2p.training.generate._draw", lambda *_: next(bytes_to_come))
    assert complete(model, "the ", tokens=20, temperature=1.0, seed=1) == "end"


def test_verify_says_what_it_verified_and_where_the_first_mismatch_is(
    made: Made, tmp_path: Path, run: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("verify", made.folder) == 0
    output = capsys.readouterr()
    assert output.out.count("\n") == 3
    assert "every digest confirmed" in output.out
    assert output.err == ""
    shutil.copytree(made.folder, tmp_path / "peer")
    (tmp_path / "peer" / "journal" / "000000000001.update").write_bytes(b"")
    assert run("verify", tmp_path / "peer") == 1
    assert capsys.readouterr().err == "prime-p2p: journal: 000000000001.update: its header is damaged\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("export", "DIR", "OUT"),
        ("export", "WHOLE", "DIR"),
        ("export", "WHOLE"),
        ("generate", "DIR", "text"),
        ("generate", "WHOLE"),
        ("generate", "WHOLE", "text", "--tokens", "0"),
        ("generate", "WHOLE", "text", "--temperature", "-1"),
        ("generate", "WHOLE", "text", "--temperature", "nan"),
        ("verify", "DIR"),
        ("verify", "OUT"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    made: Made, tmp_path: Path, run: Cli, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    (tmp_path / "dir" / "notes").mkdir(parents=True)
    names = {"DIR": tmp_path / "dir", "OUT": tmp_path / "out", "WHOLE": made.folder}
    assert run(*(names.get(argument, argument) for argument in arguments)) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("prime-p2p: ")
    assert output.err.count("\n") == 1


def test_the_folder_of_a_swarm_is_refused_with_the_name_of_a_peers_folder_in_it(
    made: Made, run: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("generate", made.folder.parent, "text") == 2
    assert f"give the folder of a peer, such as {made.folder.parent}" in capsys.readouterr().err


def test_without_a_whole_checkpoint_there_is_no_model(
    made: Made, tmp_path: Path, run: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(made.folder / "checkpoints", tmp_path / "checkpoints")
    for file in tmp_path.rglob("outer.safetensors"):
        file.write_bytes(b"")
    assert run("export", tmp_path, tmp_path / "out") == 2
    assert "none of its checkpoints is whole" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_of_a_newer_version_is_named_by_every_command(
    made: Made, tmp_path: Path, run: Cli, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prime_p2p.state.checkpoint.VERSION", 1)
    for arguments in (
        ("export", made.folder, tmp_path / "out"),
        ("generate", made.folder, "x"),
        ("verify", made.folder),
    ):
        assert run(*arguments) == 2
        assert "is of version 2, and this prime-p2p reads no newer one than 1" in capsys.readouterr().err
