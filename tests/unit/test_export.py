from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from prime_p2p.errors import BadInput
from prime_p2p.recipe import ModelRecipe
from prime_p2p.training import model
from prime_p2p.training.export import END_OF_TEXT, byte_tokenizer, export

RECIPE = ModelRecipe(hidden_size=16, intermediate_size=24, layers=2, heads=2, kv_heads=1, context=8)
TOKENIZER = byte_tokenizer(context=8)


def test_an_exported_model_opens_as_the_same_model(tmp_path: Path) -> None:
    built = model.build(RECIPE, seed=0)
    export(built, tmp_path / "out")
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokens = torch.from_numpy(np.arange(16).reshape(2, 8))
    assert torch.equal(opened(input_ids=tokens).logits, built(input_ids=tokens).logits)
    assert list(opened.state_dict()) == list(built.state_dict())


def test_an_exported_model_continues_a_text(tmp_path: Path) -> None:
    export(model.build(RECIPE, seed=0), tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    prompt = tokenizer("import", return_tensors="pt")
    continued = opened.generate(**prompt, max_new_tokens=2, do_sample=False)
    assert str(tokenizer.decode(continued[0])).startswith("import")
    assert opened.generation_config.eos_token_id == tokenizer.eos_token_id == 0


def test_an_export_holds_no_pickle_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    export(model.build(RECIPE, seed=0), tmp_path / "deep" / "out")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]
    assert {path.suffix for path in (tmp_path / "deep" / "out").iterdir()} == {".json", ".safetensors"}


def test_an_empty_folder_may_be_there_already(tmp_path: Path) -> None:
    export(model.build(RECIPE, seed=0), tmp_path)
    assert (tmp_path / "model.safetensors").is_file()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("old")
    with pytest.raises(BadInput, match=r": exists already; name a new or an empty folder$"):
        export(model.build(RECIPE, seed=0), tmp_path)
    with pytest.raises(BadInput, match=r"precious: exists already; name a new or an empty folder$"):
        export(model.build(RECIPE, seed=0), tmp_path / "precious")
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_a_place_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"^.*file.*: cannot be written: "):
        export(model.build(RECIPE, seed=0), tmp_path / "file" / "out")


def test_an_export_that_fails_midway_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(context: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("prime_p2p.training.export.byte_tokenizer", full)
    with pytest.raises(BadInput, match=r"out: cannot be written: No space left on device$"):
        export(model.build(RECIPE, seed=0), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@given(st.text().filter(lambda text: END_OF_TEXT not in text))
def test_token_and_byte_are_the_same_number(text: str) -> None:
    assert TOKENIZER(text).input_ids == list(text.encode())


@given(st.text().filter(lambda text: END_OF_TEXT not in text and "\0" not in text))
def test_decoding_gives_the_text_back(text: str) -> None:
    assert TOKENIZER.decode(list(text.encode())) == text


def test_the_end_of_a_text_is_a_special_token() -> None:
    assert TOKENIZER.decode([104, 105, 0]) == f"hi{END_OF_TEXT}"
    assert TOKENIZER.decode([104, 105, 0], skip_special_tokens=True) == "hi"
