"""Processes that this one starts and answers for: read without blocking, stopped within a bound, none left behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from prime_p2p.lifetime import STOP_PATIENCE

_READ_SIZE = 64 * 1024
_SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}


class Child:
    """One process in a session of its own, so that a Ctrl+C on the terminal reaches its parent alone.

    Its standard input is a pipe that closes when this process ends in any way; its standard output is read here; its
    standard error goes to ``DIRECTORY/stderr.log``. Whatever it leaves in its process group dies with it.
    """

    def __init__(self, name: str, command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> None:
        """Start ``command`` with ``environment`` on top of this process's own."""
        directory.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.exit_code: int | None = None
        self._stderr_path = directory / "stderr.log"
        with self._stderr_path.open("wb") as stderr:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                env={**os.environ, **environment},
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin: IO[bytes] = self._process.stdin
        self._stdout: IO[bytes] = self._process.stdout
        os.set_blocking(self._stdout.fileno(), False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process ran when it was last looked at (see ``check``)."""
        return self.exit_code is None

    @property
    def readable(self) -> bool:
        """Whether its standard output is still open."""
        return not self._stdout.closed

    def fileno(self) -> int:
        return self._stdout.fileno()

    def read(self) -> bytes:
        """What it has written since the last call, without waiting."""
        pieces = []
        while not self._stdout.closed:
            try:
                piece = os.read(self._stdout.fileno(), _READ_SIZE)
            except BlockingIOError:
                break
            if not piece:
                self._stdout.close()
            pieces.append(piece)
        return b"".join(pieces)

    def check(self) -> bool:
        """Whether it has ended. What it left in its group is killed before its pid can mean another process."""
        if self.exit_code is None:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if ended is not None:
                self._signal_group(signal.SIGKILL)
                self.exit_code = self._process.wait()
        return self.exit_code is not None

    def terminate(self) -> None:
        """Ask it to leave in good order. What it started itself is its own business."""
        if not self.check():
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it and its group now."""
        if not self.check():
            self._signal_group(signal.SIGKILL)

    def close(self) -> None:
        """Kill it if it still runs, and let go of its pipes."""
        self.kill()
        if self.exit_code is None:
            self.exit_code = self._process.wait()
        self._stdin.close()
        self._stdout.close()

    def last_words(self, lines: int = 3) -> str:
        """The last lines of its standard error in one line; empty when it said nothing."""
        with self._stderr_path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            text = file.read().decode("utf-8", "replace")
        said = [line.strip() for line in text.splitlines() if line.strip()]
        return " | ".join(said[-lines:])

    def ending(self) -> str:
        """How it ended, in words."""
        if self.exit_code is None:
            return "still running"
        if self.exit_code < 0:
            return f"killed by {_SIGNAL_NAMES.get(-self.exit_code, f'signal {-self.exit_code}')}"
        return f"exit code {self.exit_code}"

    def _signal_group(self, number: int) -> None:
        # Nothing may be left there but the zombie itself, for which some systems say "not permitted".
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def wait_for_output(children: Sequence[Child], timeout: float) -> None:
    """Return when one of ``children`` has written or closed its output, or after ``timeout`` seconds."""
    poll = select.poll()
    for child in children:
        if child.readable:
            poll.register(child.fileno(), select.POLLIN)
    poll.poll(timeout * 1000)


def stop_all(children: Sequence[Child], patience: float = STOP_PATIENCE) -> None:
    """Ask all to leave, once; kill what is left after ``patience`` seconds; close all."""
    deadline = time.monotonic() + patience
    for child in children:
        child.terminate()
    while (alive := [child for child in children if not child.check()]) and time.monotonic() < deadline:
        wait_for_output(alive, 0.05)
        for child in alive:
            child.read()
    for child in children:
        child.close()
