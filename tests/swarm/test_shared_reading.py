"""Peers that share out one text: nobody tells them what to read, and together they read it once."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from processes import Process, network
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from prime_p2p.monitor.samples import coverage, read_samples

WORDS = ["<end>", *(f"w{number}" for number in range(255))]


def write_tokenizer(folder: Path, words: list[str]) -> Path:
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<end>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    folder.mkdir()
    (folder / "tokenizer.json").write_text(backend.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    return folder


@pytest.fixture
def text(tmp_path: Path) -> dict[str, Any]:
    """The recipe of a text of 1,200 sequences, in a tokenizer's words."""
    records = (" ".join(f"w{(3 * record + 7 * word) % 255}" for word in range(100)) for record in range(400))
    lines = [json.dumps({"content": f"{record} {number}"}) + "\n" for number, record in enumerate(records)]
    (tmp_path / "texts.jsonl").write_text("".join([*lines[:9], '{"content": "cut\n', *lines[9:]]))
    return {
        "data.source": tmp_path / "texts.jsonl",
        "data.format": "jsonl",
        "data.field": "content",
        "data.tokenizer": write_tokenizer(tmp_path / "words", WORDS),
        "data.cache": tmp_path / "tokens",
        "data.order": "shared",
        "data.packing": "documents",
    }


def test_two_peers_read_apart_and_export_what_they_made_with_its_tokenizer(
    tmp_path: Path, text: dict[str, Any]
) -> None:
    ending = {"run.outer_steps": 4, "round.patience": 60.0, "eval.every": 1}
    with network(tmp_path) as (_, _, start):
        peers = [start(name, **{"round.start_with": 2}, **ending, **text) for name in ("one", "two")]
        for peer in peers:
            peer.event("done")
            assert peer.wait() == 0
        said = [line for peer in peers for line in peer.lines if "1 of 401 records of the data are damaged" in line]
        assert len(said) == 1  # by the one that tokenised for both

        accounts = {peer.directory.name: read_samples(peer.directory) for peer in peers}
        assert coverage(accounts)["peers"] == {"one": {"read": 160}, "two": {"read": 160}}
        # In the first round both are outsiders, and may meet.
        members = {name: [one for one in account if one.outer_step > 1] for name, account in accounts.items()}
        assert coverage(members)["read_twice"] == 0
        evaluated = [[step["outer_step"] for step in peer.steps if "val_loss" in step] for peer in peers]
        assert sorted(evaluated) == [[1, 3], [2, 4]]

    exported = Process("export", str(peers[0].directory), str(tmp_path / "model"))
    assert exported.wait() == 0, exported.stderr
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer("w1 w9").input_ids == [2, 10]
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model").config.eos_token_id == 0


def test_a_peer_that_is_stopped_and_started_reads_on_where_it_was(tmp_path: Path, text: dict[str, Any]) -> None:
    with network(tmp_path) as (_, _, start):
        for _ in range(2):
            peer = start("peer", **text)
            for _ in range(2):
                peer.event("outer_step")
            peer.signal(signal.SIGTERM)
            assert peer.wait() == 0
    account = read_samples(tmp_path / "peer")
    assert max(after for samples in account for _, after in samples.ranges) > 500  # as an outsider, in the first round
    found = coverage({"peer": account})
    assert found["read"] >= 4 * 40
    assert (found["skipped"], found["read_twice"]) == (
        40,
        0,
    )  # skipped is what came to be read elsewhere as an outsider
