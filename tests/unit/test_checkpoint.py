"""Checkpoints: a peer goes on after a restart as if nothing had happened, whatever the last save went through."""

from __future__ import annotations

import json
import logging
import os
import resource
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blake3 import blake3
from safetensors import safe_open

from prime_p2p.allreduce.codec import BlockVector, quantise
from prime_p2p.outer.nesterov import OuterOptimizer
from prime_p2p.outer.state import OuterState
from prime_p2p.state.checkpoint import VERSION, Checkpoint, LocalProgress, NewerVersion
from prime_p2p.state.checkpoints import Checkpoints

FILES = ["outer.safetensors", "local.safetensors", "checkpoint.json"]


@dataclass
class Training:
    """A small training run, of which a checkpoint holds everything."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    outer: OuterState
    inner_step: int = 0
    tokens: int = 0

    @classmethod
    def begin(cls, make: Callable[..., torch.optim.Optimizer]) -> Training:
        torch.manual_seed(7)
        model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 1))
        return cls(model, make(model.parameters()), OuterState.initial(flat(model)))

    def inner_steps(self, count: int) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            self.model(torch.randn(8, 20)).square().mean().backward()
            self.optimizer.step()
            self.inner_step += 1
            self.tokens += 8

    def outer_step(self) -> None:
        update = BlockVector.empty(len(self.outer.anchor))
        quantise(self.outer.anchor - flat(self.model), update)
        self.outer.apply(update, self.tokens, OuterOptimizer())
        self.tokens = 0

    def checkpoint(self) -> Checkpoint:
        local = LocalProgress(
            flat(self.model),
            self.optimizer.state_dict(),
            self.inner_step,
            self.tokens,
            torch.get_rng_state(),
            inner_step=3,
            earlier_steps=7,
            usual_sizes=((0.1, 3), (1e-9, 10)),
        )
        return Checkpoint(self.outer, local)

    def restore(self, checkpoint: Checkpoint) -> None:
        local = checkpoint.local
        torch.nn.utils.vector_to_parameters(torch.from_numpy(local.parameters), self.model.parameters())
        self.optimizer.load_state_dict(local.optimizer)
        torch.set_rng_state(local.rng_state)
        self.outer, self.inner_step, self.tokens = checkpoint.outer, local.position, local.tokens


def flat(model: torch.nn.Module) -> Any:
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy()


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, betas=(0.9, 0.95))


def fused(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, fused=True)


def in_groups(parameters: Any) -> torch.optim.Optimizer:
    first, *others = parameters
    return torch.optim.AdamW([{"params": others, "weight_decay": 0.1}, {"params": [first], "lr": 0.5}], amsgrad=True)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def trained(inner_steps: int = 3, outer_steps: int = 1) -> Training:
    training = Training.begin(adamw)
    for _ in range(outer_steps):
        training.inner_steps(1)
        training.outer_step()
    training.inner_steps(inner_steps)
    return training


def saved(directory: Path, outer_steps: range) -> list[Path]:
    return [Checkpoints(directory).save(trained(outer_steps=steps).checkpoint()) for steps in outer_steps]


def newest_step(directory: Path) -> int | None:
    checkpoint = Checkpoints(directory).load_newest()
    return None if checkpoint is None else checkpoint.outer.step


@pytest.mark.parametrize("make", [adamw, fused, in_groups, sgd])
def test_training_goes_on_after_a_restart_as_if_nothing_had_happened(
    tmp_path: Path, make: Callable[..., torch.optim.Optimizer]
) -> None:
    def go_on(training: Training) -> tuple[bytes, int, int, bytes]:
        training.inner_steps(4)
        training.outer_step()
        training.inner_steps(1)
        return training.outer.digest, training.inner_step, training.tokens, flat(training.model).tobytes()

    training = Training.begin(make)
    training.inner_steps(5)
    training.outer_step()
    training.inner_steps(3)
    Checkpoints(tmp_path).save(training.checkpoint())
    end = go_on(training)

    restarted = Training.begin(make)
    checkpoint = Checkpoints(tmp_path).load_newest()
    assert checkpoint is not None
    restarted.restore(checkpoint)
    assert go_on(restarted) == end


def test_every_field_comes_back_bit_by_bit(tmp_path: Path) -> None:
    before = trained().checkpoint()
    Checkpoints(tmp_path).save(before)
    after = Checkpoints(tmp_path).load_newest()
    assert after is not None
    for name in ("step", "tokens", "digest", "pieces"):
        assert getattr(after.outer, name) == getattr(before.outer, name)
    assert after.outer.anchor.tobytes() == after.anchor.tobytes() == before.outer.anchor.tobytes()
    assert after.outer.momentum.tobytes() == before.outer.momentum.tobytes()
    assert after.local.parameters.tobytes() == before.local.parameters.tobytes()
    assert (after.local.position, after.local.tokens) == (4, 24) == (before.local.position, before.local.tokens)
    assert (after.local.inner_step, after.local.earlier_steps) == (3, 7)
    assert after.local.usual_sizes == before.local.usual_sizes
    assert after.local.cuda_rng_state is None
    assert torch.equal(after.local.rng_state, before.local.rng_state)
    assert after.local.optimizer["param_groups"] == before.local.optimizer["param_groups"]
    assert after.local.optimizer["state"].keys() == before.local.optimizer["state"].keys()
    for key, state in before.local.optimizer["state"].items():
        for name, tensor in state.items():
            assert torch.equal(after.local.optimizer["state"][key][name], tensor)


def test_what_was_loaded_can_be_changed_without_touching_the_disk(tmp_path: Path) -> None:
    (folder,) = saved(tmp_path, range(1, 2))
    before = [(folder / name).read_bytes() for name in FILES]
    checkpoint = Checkpoints(tmp_path).load_newest()
    assert checkpoint is not None
    checkpoint.outer.anchor += 1
    checkpoint.local.parameters[:] = 0
    checkpoint.local.optimizer["state"][0]["exp_avg"].zero_()
    assert [(folder / name).read_bytes() for name in FILES] == before


@pytest.mark.parametrize("exists", [True, False])
def test_a_directory_without_checkpoints_gives_none(tmp_path: Path, exists: bool) -> None:
    assert Checkpoints(tmp_path if exists else tmp_path / "new").load_newest() is None


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    saved(tmp_path, range(1, 6))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000004-step-4", "000005-step-5"]
    Checkpoints(tmp_path, keep=1).save(trained(outer_steps=6).checkpoint())
    assert [path.name for path in tmp_path.iterdir()] == ["000006-step-6"]


def test_the_newest_is_the_one_saved_last_even_at_an_earlier_or_the_same_outer_step(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for outer_steps in (5, 2, 2):
        checkpoints.save(trained(outer_steps=outer_steps).checkpoint())
    assert newest_step(tmp_path) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000002-step-2", "000003-step-2"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("where", [0.0, 0.4, 0.99])
def test_a_damaged_checkpoint_is_named_in_one_line_and_the_older_one_taken(
    tmp_path: Path, name: str, where: float, caplog: pytest.LogCaptureFixture
) -> None:
    _, newest = saved(tmp_path, range(1, 3))
    data = bytearray((newest / name).read_bytes())
    data[int(where * len(data))] ^= 4
    (newest / name).write_bytes(data)
    assert newest_step(tmp_path) == 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert str(newest) in caplog.text
    assert "\n" not in caplog.records[0].getMessage()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kept", [None, 0, 100])
def test_a_missing_or_torn_file_makes_the_older_one_be_taken(
    tmp_path: Path, name: str, kept: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    _, newest = saved(tmp_path, range(1, 3))
    data = (newest / name).read_bytes()
    (newest / name).unlink()
    if kept is not None:
        (newest / name).write_bytes(data[:kept])
    assert newest_step(tmp_path) == 1
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["numbers"].update(tokens=content["numbers"]["tokens"] + 1),
        lambda content: content["numbers"].update(position=5),
        lambda content: content["numbers"].update(step="1"),
        lambda content: content["numbers"].pop("digest"),
        lambda content: content.pop("blake3"),
    ],
)
def test_numbers_that_were_changed_are_not_used(tmp_path: Path, change: Callable[[Any], None]) -> None:
    (folder,) = saved(tmp_path, range(1, 2))
    path = folder / "checkpoint.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    assert newest_step(tmp_path) is None


def of_version(folder: Path, version: int) -> None:
    path = folder / "checkpoint.json"
    numbers = json.loads(path.read_text())["numbers"] | {"version": version}
    checksum = blake3(json.dumps(numbers, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({"blake3": checksum, "numbers": numbers}))


def test_a_checkpoint_of_an_older_version_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    of_version(saved(tmp_path, range(1, 2))[0], VERSION - 1)
    assert newest_step(tmp_path) is None
    assert f"version {VERSION - 1}" in caplog.text


def test_one_of_a_newer_version_is_refused_with_what_to_do_for_it_must_not_be_replaced(tmp_path: Path) -> None:
    folder = saved(tmp_path, range(1, 3))[1]
    of_version(folder, VERSION + 1)
    with pytest.raises(NewerVersion, match=f"{folder} is of version {VERSION + 1}.* than {VERSION}; install the newer"):
        newest_step(tmp_path)


def test_parameters_that_are_the_anchor_are_written_once_and_come_back_apart(tmp_path: Path) -> None:
    checkpoint = trained(inner_steps=0).checkpoint()
    checkpoint = replace(checkpoint, local=replace(checkpoint.local, parameters=checkpoint.outer.anchor))
    folder = Checkpoints(tmp_path).save(checkpoint)
    with safe_open(folder / "local.safetensors", "np") as file:
        assert "parameters" not in file.keys()  # noqa: SIM118 -- it is no dict
    loaded = Checkpoints(tmp_path).load_newest()
    assert loaded is not None
    loaded.outer.anchor += 1
    assert loaded.local.parameters.tobytes() == checkpoint.outer.anchor.tobytes()


def test_none_is_given_when_all_are_damaged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for folder in saved(tmp_path, range(1, 3)):
        (folder / "outer.safetensors").unlink()
    assert newest_step(tmp_path) is None
    assert len(caplog.records) == 2


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize(("crash_at", "newest"), [(1, 2), (2, 2), (3, 2), (4, 2), (5, 2), (6, 3), (7, 3), (8, 3)])
def test_a_crash_at_any_moment_of_a_save_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: int, newest: int
) -> None:
    saved(tmp_path, range(1, 3))
    moments = iter(range(1, 100))

    def crashing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(moments) == crash_at:
                raise Crash
            return function(*args, **kwargs)

        return call

    third = trained(outer_steps=3).checkpoint()
    with monkeypatch.context() as patch:
        # In order: three files and their folder are synced, the folder gets its name, the directory is synced, the
        # oldest checkpoint loses its name, and is removed. Nothing is cleaned up after a crash.
        patch.setattr(os, "fsync", crashing(os.fsync))
        patch.setattr(Path, "rename", crashing(Path.rename))
        patch.setattr(shutil, "rmtree", crashing(lambda *_, **__: None))
        with pytest.raises(Crash):
            Checkpoints(tmp_path).save(third)
    assert newest_step(tmp_path) == newest

    Checkpoints(tmp_path).save(trained(outer_steps=4).checkpoint())
    assert newest_step(tmp_path) == 4
    assert len(list(tmp_path.iterdir())) == 2


def test_a_save_that_fails_changes_nothing(tmp_path: Path) -> None:
    saved(tmp_path, range(1, 3))
    third = trained(outer_steps=3).checkpoint()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            Checkpoints(tmp_path).save(third)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    third.local.optimizer["odd"] = object()
    with pytest.raises(TypeError, match="object"):
        Checkpoints(tmp_path).save(third)
    assert newest_step(tmp_path) == 2
    assert len(list(tmp_path.iterdir())) == 2
    assert not third.outer.lock.locked()


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    shutil.copytree(saved(tmp_path, range(1, 2))[0], tmp_path / "my-copy")
    saved(tmp_path, range(2, 5))
    assert {"notes.txt", "my-copy"} < {path.name for path in tmp_path.iterdir()}


def test_no_pickle_is_written(tmp_path: Path) -> None:
    (folder,) = saved(tmp_path, range(1, 2))
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)


def test_an_outer_state_of_one_element_can_be_kept(tmp_path: Path) -> None:
    local = LocalProgress(np.ones(1, np.float32), {}, 0, 0, torch.get_rng_state())
    Checkpoints(tmp_path).save(Checkpoint(OuterState.initial(np.ones(1, np.float32)), local))
    assert newest_step(tmp_path) == 0
