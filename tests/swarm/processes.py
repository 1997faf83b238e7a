"""Real processes of the command line, and what they say."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

COMMAND = (sys.executable, "-m", "prime_p2p.cli")
PATIENCE = 90.0  # seconds: far above what is needed, since the machine may be busy
RECIPE = Path(__file__).parents[2] / "peers" / "tiny.toml"

# A model and text so small that a peer is up soon and an outer step takes a second or two.
SMALL = {
    "model.hidden_size": 32,
    "model.intermediate_size": 64,
    "model.layers": 1,
    "model.heads": 2,
    "model.kv_heads": 2,
    "model.context": 32,
    "inner.batch_size": 2,
    "round.inner_steps": 20,
    "round.patience": 10.0,
    "round.grace": 3.0,
    "round.stall_timeout": 5.0,
    "eval.sequences": 8,
    "run.outer_steps": 0,
}


class Process:
    """A command whose standard output is read line by line while it runs."""

    def __init__(self, *arguments: str, cwd: Path | None = None) -> None:
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=cwd,
        )
        self._errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, args=(self.process.stdout, self._queue.put), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, self._errors.append), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _read(stream: Any, put: Callable[[str], None]) -> None:
        with stream:
            for line in stream:
                put(line.rstrip("\n"))

    @property
    def stderr(self) -> str:
        return "\n".join(self._errors)

    def line(self, timeout: float = PATIENCE) -> str:
        """The next line it prints."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                line = self._queue.get(timeout=0.2)
            except queue.Empty:
                assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.stderr}"
                assert time.monotonic() < deadline, f"it printed nothing for {timeout} s: {self.stderr}"
                continue
            assert line is not None
            self.lines.append(line)
            return line

    def rest(self) -> list[str]:
        """What it printed that has not been asked for yet."""
        lines = []
        while not self._queue.empty():
            line = self._queue.get_nowait()
            assert line is not None
            lines.append(line)
        return lines

    def wait(self, timeout: float = PATIENCE) -> int:
        code = self.process.wait(timeout)
        for thread in self._threads:
            thread.join(5)
        return code

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def overrides(**settings: Any) -> list[str]:
    """The options that make a recipe ``SMALL``, with these settings."""
    return [f"--set={key}={value}" for key, value in (SMALL | settings).items()]


def peer_arguments(bootstrap: str, directory: Path, recipe: Path = RECIPE, **settings: Any) -> list[str]:
    """What the command line of a small peer is given; ``settings`` are those of the recipe."""
    place = ["--bootstrap", bootstrap, "--dir", str(directory), "--host", "127.0.0.1", "--port", "0"]
    return ["peer", "--recipe", str(recipe), *place, "--threads", "1", *overrides(**settings)]


class Trainer(Process):
    """A command that trains and prints events."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        super().__init__(*arguments, "--json")
        self.directory = directory
        self.steps: list[dict[str, Any]] = []

    def event(self, name: str, timeout: float = PATIENCE) -> dict[str, Any]:
        """The next event of this name; outer steps on the way are kept in ``steps``."""
        deadline = time.monotonic() + timeout
        while True:
            event: dict[str, Any] = json.loads(self.line(max(0.0, deadline - time.monotonic())))
            if event["event"] == "outer_step":
                self.steps.append(event)
            if event["event"] == name:
                return event

    def outer_step(self, wanted: Callable[[dict[str, Any]], bool], timeout: float = PATIENCE) -> dict[str, Any]:
        """The next outer step that is as wanted."""
        deadline = time.monotonic() + timeout
        while True:
            step = self.event("outer_step", max(0.0, deadline - time.monotonic()))
            if wanted(step):
                return step

    def digests(self) -> dict[int, str]:
        return {step["outer_step"]: step["digest"] for step in self.steps}


class Peer(Trainer):
    """One that was told the recipe."""

    def __init__(
        self,
        bootstrap: str,
        directory: Path,
        recipe: Path = RECIPE,
        options: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        super().__init__(directory, *peer_arguments(bootstrap, directory, recipe, **settings), *options)


@contextmanager
def network(folder: Path) -> Iterator[tuple[Process, str, Callable[..., Peer]]]:
    """A bootstrap node, its address, and what starts peers that know it; all are ended at the end."""
    started: list[Process] = []
    try:
        key = folder / "bootstrap.key"
        bootstrap = Process("bootstrap", "--port", "0", "--host", "127.0.0.1", "--identity", str(key))
        started.append(bootstrap)
        address = bootstrap.line()

        def start(name: str, **settings: Any) -> Peer:
            peer = Peer(settings.pop("bootstrap", address), folder / name, **settings)
            started.append(peer)
            return peer

        yield bootstrap, address, start
    finally:
        for process in started:
            process.end()


def agree(*peers: Trainer) -> int:
    """Check that no outer step has two digests; returns how often two peers could be compared."""
    compared = 0
    seen: dict[int, str] = {}
    for peer in peers:
        for step, digest in peer.digests().items():
            compared += step in seen
            assert seen.setdefault(step, digest) == digest, f"outer step {step} has two digests"
    return compared
