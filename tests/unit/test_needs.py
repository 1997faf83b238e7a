"""The plan command: what it prints, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import prime_p2p
from prime_p2p.builtin_recipes import find_recipe
from prime_p2p.estimate import Estimate
from prime_p2p.monitor.text import size
from prime_p2p.recipe import Recipe

ROOT = Path(prime_p2p.__file__).parents[1]

Cli = Callable[..., int]

ALL = ("tiny", "150m", "1b", "metagene-7b", "10b")


@pytest.mark.parametrize("name", ALL)
def test_every_recipe_has_a_plan(name: str, run: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", name) == 0
    output = capsys.readouterr().out
    assert f"{Estimate(Recipe.load(find_recipe(name)), 8).parameters:,} parameters" in output
    assert "give --bandwidth, as in 500Mbit" in output
    assert "give --step-time, the seconds of an inner step" in output
    assert max(map(len, output.splitlines())) <= 120


def test_gpus_of_one_peer_share_its_model_and_its_batch(run: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--set", "inner.batch_size=8", "--set", "inner.accumulation=1")
    assert run("plan", "1b", "--devices", "8", *small) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "GPU memory      2.20 GB of parameters, gradients and moments, in float32 on each of 8 GPUs" in lines
    assert [line for line in lines if line.endswith("of activations, in bfloat16: 1 sequences of 1024 tokens")]
    assert run("plan", "1b", "--devices", "3", *small) == 2
    assert "cannot be shared equally by 3 devices" in capsys.readouterr().err


def test_the_plan_of_a_run_of_a_billion_parameters(run: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--bandwidth 500Mbit --step-time 5 --gpu-memory 80 --peers 40"
    assert run("plan", "1b", *options.split()) == 0
    assert capsys.readouterr().out.splitlines() == [
        "run             opendiloco-1b",
        "model           1,100,048,384 parameters: 22 layers of width 2048",
        "data            c4",
        "                licence: ODC-BY 1.0, and the terms of use of Common Crawl",
        "GPU memory      17.6 GB of parameters, gradients and moments, in float32",
        "                about 24.2 GB of activations, in bfloat16: 8 sequences of 1024 tokens",
        "                80.0 GB have room for about 21 sequences at a time; 8 fits",
        "host memory     at most 15.4 GB, beside PyTorch and the text",
        "                at most 24.2 GB for a moment, to resume with a GPU",
        "disk            at most 111 GB",
        "                2 checkpoints (up to 22.0 GB each), updates, snapshots",
        "round           every 125 inner steps, of 32 peers of the 40 (round.max_group)",
        "                2.14 GB sent by each, and as much received",
        "round time      about 1:05 at 500Mbit/s each way",
        "inner steps     10:25 between two rounds",
        "compute share   about 90.6% of the time in inner steps",
        "                at least 90% from 464Mbit/s each way on",
        "traffic         about 11.2 GB an hour each way",
    ]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("10b --gpu-memory 80", "80.0 GB are not enough, whatever inner.batch_size is"),
        (
            "150m --gpu-memory 80 --set inner.accumulation=4",
            "80.0 GB have room for about 91 sequences at a time; 128 does not fit: raise inner.accumulation",
        ),
        ("10b --step-time 5", "never 90%: an outer step takes too long even without a transfer; make more inner steps"),
        ("tiny --step-time 1 --peers 1", "at least 90% with any bandwidth"),
        ("tiny --step-time 1", "traffic         at most 38.9 MB an hour each way"),
        ("tiny --bandwidth 1", "round time      about 0:12 at 1Mbit/s each way"),
        ("tiny --bandwidth 4Gbit", "round time      about 0.0064 s at 4Gbit/s each way"),
        ("tiny", "data            python-stdlib\n                licence: not said\n"),
        (
            "tiny --peers 1",
            "round           every 80 inner steps, of one peer alone\n                nothing is sent\n",
        ),
        (
            "tiny --set round.inner_steps_schedule=[[0,5],[7,9]]",
            "round           every 5 inner steps (9 from outer step 7), of 8 peers",
        ),
        ("tiny --set data.licence=\x1b[2JPSF", "licence: �[2JPSF"),
    ],
)
def test_the_plan_says(options: str, line: str, run: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", *options.split(" ")) == 0
    assert line in capsys.readouterr().out


def test_the_plan_can_be_had_as_json(run: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    estimate = Estimate(Recipe.load(find_recipe("1b")), 8)
    assert run("plan", "1b", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"] == estimate.parameters
    assert found["gpu_bytes"] == {"model": estimate.model_bytes, "activations_about": estimate.activation_bytes(8)}
    assert not found.keys() & {"round_seconds", "compute_share", "minimum_bandwidth_mbit", "largest_batch"}

    assert run("plan", "1b", "--json", "--bandwidth", "1Gbit", "--step-time", "5", "--gpu-memory", "80") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["round_seconds"] == estimate.round_seconds(1000)
    assert found["compute_share"] == estimate.compute_share(5, 1000)
    assert found["minimum_bandwidth_mbit"] == estimate.minimum_bandwidth(5)
    assert found["bytes_per_hour"] == estimate.bytes_per_hour(5, 1000)
    assert found["largest_batch"] == 21


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("plan", "RECIPE"),
        ("plan huge", "huge: no such recipe; give the path of one, or one of: 10b, 150m, 1b, metagene-7b, tiny"),
        ("plan tiny --bandwidth 500MB", "--bandwidth '500MB': must be a number of Mbit/s"),
        ("plan tiny --step-time nan", "--step-time: must be a number above 0"),
        ("plan tiny --step-time inf", "--step-time: must be a number above 0"),
        ("plan tiny --step-time 0", "--step-time: must be a number above 0"),
        ("plan tiny --gpu-memory -80", "--gpu-memory: must be a number above 0"),
        ("plan tiny --peers 0", "--peers"),
        ("plan tiny --set model.layers=0", "--set model.layers: must be greater than 0"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: str, reason: str, run: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments.split()) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert reason in output.err
    assert output.err.count("\n") == 1


def test_what_a_plan_is_made_of_loads_neither_torch_nor_the_network() -> None:
    code = (
        "import sys\n"
        "import prime_p2p.bandwidth, prime_p2p.builtin_recipes, prime_p2p.estimate, prime_p2p.monitor.needs\n"
        "assert not {'torch', 'transformers', 'hivemind', 'uvloop', 'asyncio'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=ROOT)


@pytest.mark.parametrize("name", ALL)
def test_the_table_of_recipes_has_the_figures_of_their_plans(name: str) -> None:
    lines = (ROOT / "peers" / "README.md").read_text(encoding="utf-8").splitlines()
    (row,) = (line for line in lines if line.startswith(f"| [`{name}`]({name}.toml) |"))
    estimate = Estimate(Recipe.load(find_recipe(name)), 8)
    sequence = estimate.activation_bytes(2) - estimate.activation_bytes(1)
    at_rest = (estimate.model_bytes, sequence, estimate.host_bytes, estimate.disk_bytes)
    figures = [f"{estimate.parameters:,}", *map(size, at_rest), size(estimate.round_bytes)]
    assert [cell.strip() for cell in row.split("|")[3:-1]] == figures


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0.00 kB"),
        (999, "1.00 kB"),
        (865_200, "865 kB"),
        (75.3e6, "75.3 MB"),
        (1.03e12, "1.03 TB"),
        (2e15, "2000 TB"),
    ],
)
def test_sizes_have_three_digits(count: float, text: str) -> None:
    assert size(count) == text
