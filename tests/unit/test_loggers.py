"""What loggers are told, and what one does that cannot go on."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from peer_folders import small_recipe
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray
from test_reporter import METRICS, PROGRESS

from prime_p2p.errors import BadInput
from prime_p2p.monitor.loggers.points import Point, of_inner_step, of_outer_step
from prime_p2p.monitor.loggers.reporter import INTERVAL, LoggerReporter, wanted
from prime_p2p.monitor.loggers.serve import serve
from prime_p2p.monitor.loggers.sinks import TensorBoard, open_sink

PEER = json.dumps({"peer": "12D3KooWme"})


def read_back(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard finds in a folder of event files: steps and values, by tag."""
    found = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    found.Reload()
    return {
        tag: [(event.step, float(make_ndarray(event.tensor_proto))) for event in found.Tensors(tag)]
        for tag in found.Tags()["tensors"]
    }


@pytest.fixture
def answers() -> Iterator[tuple[int, int]]:
    """A pipe that a logger answers to."""
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def test_tensorboard_finds_every_outer_step_and_the_inner_losses_between(tmp_path: Path) -> None:
    sink = TensorBoard(str(tmp_path))
    for step in (4, 5):
        sink.write(of_inner_step(replace(PROGRESS, loss=step / 2), steps_before=100 * step))
        sink.write(of_outer_step(replace(METRICS, outer_step=step, train_loss=step / 4)))
    sink.close()
    found = read_back(tmp_path)
    assert found["outer/train_loss"] == [(4, 1.0), (5, 1.25)]
    assert found["inner/loss"] == [(400 + PROGRESS.inner_step, 2.0), (500 + PROGRESS.inner_step, 2.5)]
    assert found["outer/validation_loss"][0] == (4, 2.125)
    assert found["outer/tokens_per_second"][0] == (4, METRICS.tokens / METRICS.seconds.total)
    assert found["outer/seconds/inner"][0] == (4, METRICS.seconds.inner)
    assert found["outer/group_size"][0] == (4, len(METRICS.group))


def test_what_is_not_known_or_no_number_is_no_figure() -> None:
    point = of_outer_step(replace(METRICS, train_loss=math.nan, val_loss=None))
    assert not {"outer/train_loss", "outer/validation_loss"} & set(point.figures)
    assert of_inner_step(replace(PROGRESS, loss=None), 0).figures.keys() == {"inner/tokens_per_second"}


def test_inner_steps_are_told_once_in_an_interval_by_their_number_in_the_run() -> None:
    told: list[dict[str, Any]] = []
    now = 50.0
    reporter = LoggerReporter(told.append, lambda outer_step: 80 * outer_step, lambda: now)
    for inner_step in range(1, 31):
        reporter.progress(replace(PROGRESS, outer_step=2, inner_step=inner_step))
        now += INTERVAL / 10
    reporter.outer_step(METRICS)
    assert [(record["axis"], record["step"]) for record in told] == [
        ("inner_step", 161),
        ("inner_step", 171),
        ("inner_step", 181),
        ("outer_step", METRICS.outer_step),
    ]


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_a_package_that_is_missing_is_named_with_what_installs_it(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (package, "tensorboard.summary"):
        monkeypatch.setitem(sys.modules, name, None)
    recipe = small_recipe(f"logging.{package}=x")
    ((name, settings),) = wanted(recipe, tmp_path)
    assert name == package
    with pytest.raises(BadInput, match=rf'^the package {package} is missing: pip install "prime_p2p\[{package}\]"$'):
        open_sink(settings)


def test_a_logger_that_fails_says_why_in_one_line_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: tuple[int, int]
) -> None:
    def fail(self: TensorBoard, point: Point) -> None:
        raise OSError(28, "No space\nleft")

    monkeypatch.setattr(TensorBoard, "write", fail)
    settings = json.dumps({"sink": "tensorboard", "folder": str(tmp_path)})
    points = [json.dumps(asdict(of_outer_step(METRICS)))] * 2
    assert serve([settings, PEER, *points], answers[1]) == 1
    assert os.read(answers[0], 1000) == b"\n[Errno 28] No space left\n"


def test_a_torn_line_is_no_end_of_a_logger(tmp_path: Path, answers: tuple[int, int]) -> None:
    settings = json.dumps({"sink": "tensorboard", "folder": str(tmp_path)})
    point = json.dumps(asdict(of_outer_step(METRICS)))
    assert serve([settings, PEER, point[:40] + "\n", point], answers[1]) == 0
    assert len(read_back(tmp_path)["outer/tokens"]) == 1


def test_a_folder_that_cannot_be_made_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"^logging.tensorboard: .*file/x: Not a directory; name a folder that can be"):
        list(wanted(small_recipe("logging.tensorboard=file/x"), tmp_path))


def test_a_recipe_asks_for_no_logger_unless_it_names_one(tmp_path: Path) -> None:
    assert list(wanted(small_recipe(), tmp_path)) == []
