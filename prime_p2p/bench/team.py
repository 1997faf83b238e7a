"""A team of processes that work together, and the one that tells them what to do and reads what they measured.

They speak in lines of JSON over standard input and output; a process ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any

from prime_p2p.errors import PrimeError
from prime_p2p.lab.hosts import on_host

START_WITHIN = 120.0  # seconds that a process may take to be there, on a busy machine
END_WITHIN = 15.0
_LINE_LIMIT = 1 << 20

Answer = dict[str, Any]


class WorkerFailed(PrimeError):
    """A process of a team ended, or took too long."""


class Worker:
    """One process, with those that it starts, as its team sees it."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, said: IO[bytes]) -> None:
        self.name = name
        self._process = process
        self._said = said
        self._busy = True  # with getting ready

    @classmethod
    async def start(cls, name: str, module: str, options: Mapping[str, Any]) -> Worker:
        """Run ``python -m module`` with these options, as JSON; at the ``host`` of a lab that is among them, if any."""
        command = [sys.executable, "-m", module, json.dumps(options)]
        said = tempfile.TemporaryFile()  # noqa: SIM115 - for as long as the process; hivemind talks a lot
        process = await asyncio.create_subprocess_exec(
            *(on_host(options["host"], command) if options.get("host") else command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=said,
            limit=_LINE_LIMIT,
            start_new_session=True,  # Ctrl+C on a terminal reaches its parent alone
        )
        return cls(name, process, said)

    def tell(self, **question: Any) -> None:
        """Have it do something. Raises WorkerFailed."""
        assert self._process.stdin is not None
        if self._process.stdin.is_closing():
            raise self._ended()
        self._busy = True
        self._process.stdin.write(json.dumps(question).encode() + b"\n")

    async def answer(self, timeout: float) -> Answer:
        """Its next answer, within so many seconds. Raises WorkerFailed."""
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), timeout)
        except asyncio.TimeoutError:
            raise WorkerFailed(f"{self.name} did not answer within {timeout:g} s") from None
        if not line:
            raise self._ended()
        self._busy = False
        answer: Answer = json.loads(line)
        if "error" in answer:
            raise WorkerFailed(f"{self.name}: {answer['error']}")
        return answer

    def _ended(self) -> WorkerFailed:
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - 4096))
        lines = self._said.read().decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return WorkerFailed(f"{self.name} ended unexpectedly{': ' + last if last else ''}")

    async def end(self) -> None:
        """Have it end by itself, and kill what has not; at once where it is busy, and does not see that it shall."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 0.0 if self._busy else END_WITHIN)
        except asyncio.TimeoutError:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):  # what it started outlives it if it was killed
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
            self._said.close()


class Team:
    """Processes of one kind: the first is started alone, and the others are given its answer as ``first``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._workers: list[Worker] = []

    async def start(self, module: str, options: Sequence[Mapping[str, Any]]) -> None:
        """Start a process for each of the options, and have them meet. On an error, call ``end`` all the same."""
        ready: list[Answer] = []
        for rank, its in enumerate(options):
            first = ready[0] if ready else {}
            self._workers.append(await Worker.start(f"{self.name} {rank}", module, {**its, "first": first}))
            if not ready:
                ready.append(await self._workers[0].answer(START_WITHIN))
        ready += [await worker.answer(START_WITHIN) for worker in self._workers[1:]]
        await self.ask(START_WITHIN, do="meet", team=ready)

    async def ask(self, timeout: float, **question: Any) -> list[Answer]:
        """Tell all of them the same at once; their answers, in order. Raises WorkerFailed."""
        for worker in self._workers:
            worker.tell(**question)
        return list(await asyncio.gather(*(worker.answer(timeout) for worker in self._workers)))

    async def end(self) -> None:
        """End all of them; may be called again."""
        workers, self._workers = self._workers, []
        await asyncio.gather(*(worker.end() for worker in workers))
