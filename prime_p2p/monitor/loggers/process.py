"""A logger as the peer has it: a process to write lines to, which never holds the peer up and never ends it."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any

from prime_p2p.errors import BadInput
from prime_p2p.monitor.loggers.serve import FINISH
from prime_p2p.monitor.outlet import Outlet
from prime_p2p.monitor.text import printable

logger = logging.getLogger(__name__)

START = 60.0  # seconds to load the package
_ANSWER = 4096  # bytes that are read of an answer
_ENDED = "its process has ended"


class LoggerProcess:
    """Started here, ended by ``close``. What goes wrong once it has started is one line of the log, and its end."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        """Raises BadInput where there can be no such logger here."""
        self._name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "prime_p2p.monitor.loggers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl+C is for the peer alone, which then closes it
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input: IO[bytes] = self._process.stdin
        self._output: IO[bytes] = self._process.stdout
        self._lost = False
        self._outlet = Outlet(self._input.fileno(), patience=0.0)
        try:
            self._start(settings)
        except BaseException:
            self._end()
            raise

    def _start(self, settings: Mapping[str, Any]) -> None:
        try:
            self._input.write(json.dumps(settings).encode() + b"\n")
            self._input.flush()
            said = self._said(START)
        except OSError as error:
            said = str(error)
        if said is None or said:
            raise BadInput(f"logging.{self._name}: {said or f'has not started within {START:.0f} s'}")

    def tell(self, record: Mapping[str, Any]) -> None:
        """Hand it a record; one for which there is no room is dropped, and all are once it has ended."""
        if self._lost:
            return
        said = self._said(0.0)
        if said is None:
            self._outlet.write(json.dumps(record))
        else:
            self._lose(said)

    def close(self) -> None:
        """Give it some seconds to finish, and end it."""
        self._input.close()
        try:
            code = self._process.wait(FINISH + 1)
        except subprocess.TimeoutExpired:
            code = -signal.SIGALRM
        if code and not self._lost:
            late = code == -signal.SIGALRM
            self._lose(f"it did not finish within {FINISH} s" if late else self._said(0.0) or _ENDED)
        self._end()

    def _said(self, timeout: float) -> str | None:
        """What it has said, nothing where it is ready; None where it says nothing within ``timeout`` seconds."""
        poll = select.poll()
        poll.register(self._output, select.POLLIN)
        if not poll.poll(timeout * 1000):
            return None
        said = os.read(self._output.fileno(), _ANSWER)
        return printable(said.decode("utf-8", "replace")) if said else _ENDED

    def _lose(self, reason: str) -> None:
        self._lost = True
        logger.warning("the %s logger has stopped: %s; training goes on without it", self._name, reason)

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        with suppress(OSError):  # what was not flushed, for a process that has ended
            self._input.close()
        self._output.close()
