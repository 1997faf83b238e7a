"""Loggers as a peer has them: processes that it starts, hands its figures to, and does not wait for."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import pytest
from processes import PATIENCE, RECIPE, Peer

from prime_p2p.errors import BadInput
from prime_p2p.monitor.loggers import process
from prime_p2p.monitor.loggers.process import LoggerProcess
from prime_p2p.monitor.loggers.reporter import wanted
from prime_p2p.recipe import Recipe

PEER = {"peer": "12D3KooWabcdefgh"}
POINT = {"axis": "outer_step", "step": 1, "figures": {"outer/train_loss": 2.5}}

Start = Callable[..., tuple[LoggerProcess, psutil.Process]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the logger that settings of [logging] ask for; gives its process too."""
    with ExitStack() as owned:

        def started(*settings: str) -> tuple[LoggerProcess, psutil.Process]:
            before = set(psutil.Process().children())
            ((name, asked),) = wanted(Recipe.load(RECIPE, settings), tmp_path)
            logger = owned.enter_context(closing(LoggerProcess(name, asked)))
            (child,) = set(psutil.Process().children()) - before
            return logger, child

        yield started


def test_weights_and_biases_keeps_a_run_offline_and_leaves_no_process(start: Start, tmp_path: Path) -> None:
    logger, child = start("logging.wandb=project")
    logger.tell(PEER)
    logger.tell(POINT)
    logger.close()
    (kept,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = kept.read_bytes()
    assert all(text in content for text in (b"outer/train_loss", b"tiny-abcdefgh", b"learning_rate"))
    assert not child.is_running()


def test_who_is_not_logged_in_is_told_so_at_once(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(
        BadInput, match=r"^logging.wandb: nobody is logged in: run \"wandb login\", or set logging\.wand"
    ):
        start("logging.wandb=project", "logging.wandb_mode=online")


def test_a_logger_that_is_gone_is_one_line_and_silence(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    logger, child = start("logging.tensorboard=tb")
    child.kill()
    child.wait()
    with caplog.at_level(logging.WARNING):
        for record in (PEER, *[POINT] * 100):
            logger.tell(record)
        logger.close()
    assert caplog.messages == ["the tensorboard logger has stopped: its process has ended; training goes on without it"]


def test_a_logger_that_hangs_is_not_waited_for(
    start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "FINISH", 0)
    logger, child = start("logging.tensorboard=tb")
    child.send_signal(signal.SIGSTOP)
    with caplog.at_level(logging.WARNING):
        for record in (PEER, *[POINT] * 5000):  # many times what its pipe takes
            logger.tell(record)
        logger.close()
    assert not child.is_running()
    assert caplog.messages == [
        "the tensorboard logger has stopped: it did not finish within 0 s; training goes on without it"
    ]


def test_what_stops_the_peer_does_not_stop_its_logger_before_it(start: Start, tmp_path: Path) -> None:
    logger, child = start("logging.tensorboard=tb")
    child.send_signal(signal.SIGTERM)
    logger.tell(PEER)
    logger.tell(POINT)
    logger.close()
    (events,) = (tmp_path / "tb").iterdir()
    assert b"outer/train_loss" in events.read_bytes()


def test_a_peer_whose_logger_is_still_starting_stops_at_the_first_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, begun = tmp_path / "packages" / "tensorboard", tmp_path / "begun"
    package.mkdir(parents=True)
    package.joinpath("__init__.py").write_text(f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(90)\n")
    monkeypatch.setenv("PYTHONPATH", str(package.parent), prepend=os.pathsep)
    peer = Peer("/ip4/127.0.0.1/tcp/1", tmp_path / "peer", **{"logging.tensorboard": "tb"})
    try:
        deadline = time.monotonic() + PATIENCE
        while not begun.exists():
            assert time.monotonic() < deadline, peer.stderr
            time.sleep(0.05)
        children = peer.children()
        peer.signal(signal.SIGINT)
        assert peer.wait(30) == 0
        assert children
        assert not any(child.is_running() for child in children)
    finally:
        peer.end()
