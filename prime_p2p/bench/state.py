"""How fast a joining peer gets the state of a run, beside raw streams and hivemind's ``load_state_from_peers``.

Donors are processes on this machine and the joiner is this one. A snapshot is fetched several times, and just before
each the same bytes over raw streams between the same processes: once from the states' memory to such memory as the
snapshot comes to, and once from and to one small buffer. Then one missed update is fetched and replayed.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prime_p2p.bench import state_raw
from prime_p2p.bench.rounds import Say
from prime_p2p.bench.state_donor import OUTER, RUN, parameters
from prime_p2p.bench.state_raw import BYTES_OF_PARAMETER, STALL
from prime_p2p.bench.tables import shown, table
from prime_p2p.bench.team import START_WITHIN, Answer, Worker, WorkerFailed
from prime_p2p.network.frames import FrameError
from prime_p2p.network.node import Node, NodeConfig
from prime_p2p.network.streams import StreamError
from prime_p2p.outer.journal import Journal
from prime_p2p.outer.state import OuterState
from prime_p2p.state.client import StateClient
from prime_p2p.state.messages import TransferError
from prime_p2p.state.shelf import Shelf
from prime_p2p.state.snapshots import Snapshots
from prime_p2p.state.standing import Standing
from prime_p2p.state.undo import Undo
from prime_p2p.temporary import TemporaryFolder

ANSWER_WITHIN = 10.0  # seconds, for what a process knows already
LOAD_WITHIN = 400.0  # above what hivemind is given itself
_SLOWEST = 2e6  # bytes a second; with less, something is stuck


@dataclass(frozen=True)
class Question:
    """What to measure: a state of ``params`` parameters from each of these numbers of ``donors``, ``rounds`` times."""

    params: int
    donors: tuple[int, ...]
    rounds: int
    hivemind: bool

    @property
    def size(self) -> int:
        """Bytes of a snapshot."""
        return BYTES_OF_PARAMETER * self.params

    @property
    def within(self) -> float:
        """Seconds for anything that is done with that many bytes."""
        return START_WITHIN + self.size / _SLOWEST


@dataclass(frozen=True)
class MissedUpdate:
    """One update fetched and replayed: seconds, processor seconds here, and its bytes as a share of a snapshot's."""

    seconds: float
    cpu: float
    share: float


@dataclass(frozen=True)
class Round:
    """Seconds: of the snapshot, of raw streams to memory like its own, of those from and to one small buffer."""

    snapshot: float
    raw: float
    raw_buffer: float


@dataclass(frozen=True)
class Fetched:
    """What was measured with so many donors; ``longest_wait`` in seconds, of the training of any of them for the lock
    of its state."""

    donors: int
    each: tuple[Round, ...]
    longest_wait: float
    update: MissedUpdate

    @property
    def medians(self) -> Round:
        return Round(
            statistics.median(one.snapshot for one in self.each),
            statistics.median(one.raw for one in self.each),
            statistics.median(one.raw_buffer for one in self.each),
        )

    @property
    def share(self) -> float:
        """The rate of a snapshot as a share of that of raw streams just before it; the median."""
        return statistics.median(one.raw / one.snapshot for one in self.each)

    @property
    def share_of_buffer(self) -> float:
        """The same, of raw streams from and to one small buffer."""
        return statistics.median(one.raw_buffer / one.snapshot for one in self.each)


@dataclass(frozen=True)
class StateMeasured:
    """``hivemind``: the seconds of each time that it loaded as many bytes from one donor; empty where it did not."""

    question: Question
    fetched: tuple[Fetched, ...]
    hivemind: tuple[float, ...]

    @property
    def hivemind_seconds(self) -> float | None:
        """The median; None where it was not measured."""
        return statistics.median(self.hivemind) if self.hivemind else None

    def ratio(self, fetched: Fetched) -> float | None:
        """How many times as long as ours hivemind takes."""
        seconds = self.hivemind_seconds
        return None if seconds is None else seconds / fetched.medians.snapshot


async def measure(question: Question, say: Say) -> StateMeasured:
    """Measure all of it. Raises WorkerFailed where a process fails or takes too long."""
    fetched = [await _fetched(question, count, say) for count in question.donors]
    return StateMeasured(question, tuple(fetched), await _hivemind(question, say) if question.hivemind else ())


async def _fetched(question: Question, count: int, say: Say) -> Fetched:
    say(f"{count} donors begin")
    with TemporaryFolder() as folder:
        async with _donors(question, count, folder) as (workers, cards), _joiner(folder, cards) as joiner:
            try:
                each, update = await asyncio.wait_for(
                    joiner.measure(question, say), (4 + 3 * question.rounds) * question.within
                )
            except asyncio.TimeoutError:
                raise WorkerFailed(f"a state does not come from {count} donors: it takes too long") from None
            except (StreamError, FrameError, TransferError) as error:
                raise WorkerFailed(f"a state does not come from {count} donors: {error}") from None
            waits = [float((await _ask(worker, ANSWER_WITHIN))["longest_wait"]) for worker in workers]
            return Fetched(count, each, max(waits), update)


@contextlib.asynccontextmanager
async def _donors(question: Question, count: int, folder: Path) -> AsyncIterator[tuple[list[Worker], list[Answer]]]:
    """Processes that have the state, and what each of them answered."""
    async with contextlib.AsyncExitStack() as stack:
        workers: list[Worker] = []
        cards: list[Answer] = []
        for number in range(count):
            home = folder / f"donor-{number}"
            home.mkdir()
            options = {"params": question.params, "folder": str(home), "first": cards[0] if cards else {}}
            workers.append(await _started(stack, f"donor {number}", "prime_p2p.bench.state_donor", options))
            cards.append(await workers[-1].answer(question.within))
        yield workers, cards


async def _started(stack: contextlib.AsyncExitStack, name: str, module: str, options: dict[str, Any]) -> Worker:
    worker = await Worker.start(name, module, options)
    stack.push_async_callback(worker.end)
    return worker


async def _ask(worker: Worker, timeout: float) -> Answer:
    worker.tell()
    return await worker.answer(timeout)


@contextlib.asynccontextmanager
async def _joiner(folder: Path, cards: list[Answer]) -> AsyncIterator[_Joiner]:
    node = await Node.create(NodeConfig(folder / "identity.key", (cards[0]["address"],)))
    try:
        yield _Joiner(node, folder / "joiner", cards)
    finally:
        await node.close()


class _Joiner:
    """A node that is to get the state of these donors."""

    def __init__(self, node: Node, folder: Path, cards: list[Answer]) -> None:
        self._node = node
        self._folder = folder
        self._peers = [card["peer"] for card in cards]
        self._before, self._after = (bytes.fromhex(cards[0][key]) for key in ("before", "after"))
        folder.mkdir()

    async def measure(self, question: Question, say: Say) -> tuple[tuple[Round, ...], MissedUpdate]:
        for peer in self._peers:  # so that the connections are there
            await StateClient(self._node, RUN, STALL).offers(peer)
        each = []
        for number in range(1, question.rounds + 1):
            each.append(found := await self._round(question.params))
            rates = [
                f"{question.size / seconds / 1e6:.0f}" for seconds in (found.snapshot, found.raw, found.raw_buffer)
            ]
            say(f"round {number}: snapshot {rates[0]} MB/s, raw streams {rates[1]} ({rates[2]} from and to one buffer)")
        update = await self._replay(question.params)
        say(f"one missed update: {update.seconds:.2f} s, {update.cpu:.2f} CPU-s")
        return tuple(each), update

    async def _round(self, n: int) -> Round:
        raw = await state_raw.fetch(self._node, self._peers, n, _new_state(n))
        raw_buffer = await state_raw.fetch(self._node, self._peers, n, None)
        return Round(await self._snapshot(n), raw, raw_buffer)

    async def _snapshot(self, n: int) -> float:
        shelf = Shelf(self._folder, lambda: None, Journal(self._folder / "journal"))
        client = StateClient(self._node, RUN, STALL)
        snapshots = Snapshots(client, shelf, lambda: self._peers, Standing())
        initial = _new_state(n)
        try:
            began = time.perf_counter()
            state = await snapshots.fetch(self._after, n, reach=8, arrays=(initial.anchor, initial.momentum))
            seconds = time.perf_counter() - began
        finally:
            await shelf.close()
        if state.digest != self._after:
            raise WorkerFailed("the snapshot is not the state that was asked for")
        return seconds

    async def _replay(self, n: int) -> MissedUpdate:
        state = OuterState.initial(parameters(n))
        client, journal = StateClient(self._node, RUN, STALL), Journal(self._folder / "journal")
        began, used = time.perf_counter(), _cpu()
        entry, update, _ = await client.update(self._peers[0], state.step, self._before, n)
        Undo(state, self._folder)
        if state.apply(update, entry.tokens, OUTER) != self._after:
            raise WorkerFailed("the missed update does not lead to the state of the donors")
        journal.append(entry, update)
        seconds, used = time.perf_counter() - began, _cpu() - used
        return MissedUpdate(seconds, used, client.bytes_received / (BYTES_OF_PARAMETER * n))


def _new_state(n: int) -> OuterState:
    """That of a joiner; what comes goes to its memory."""
    return OuterState.initial(np.zeros(n, np.float32))


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _hivemind(question: Question, say: Say) -> tuple[float, ...]:
    """Seconds of each time that hivemind loads as many bytes from one donor."""
    say("hivemind: 2 processes begin")
    module, seconds = "prime_p2p.bench.hivemind_state", []
    async with contextlib.AsyncExitStack() as stack:
        options = {"params": question.params, "first": {}}
        giver = await _started(stack, "hivemind's donor", module, options)
        options = {**options, "first": await giver.answer(question.within)}
        joiner = await _started(stack, "hivemind's joiner", module, options)
        await joiner.answer(START_WITHIN)
        for number in range(1, question.rounds + 1):
            seconds.append(float((await _ask(joiner, LOAD_WITHIN))["seconds"]))
            say(f"hivemind: round {number}, {question.size / seconds[-1] / 1e6:.0f} MB/s")
    return tuple(seconds)


def as_json(found: StateMeasured) -> dict[str, Any]:
    """Seconds are medians but in ``each``; ``hivemind`` and the ratios to it are None where it was not measured."""
    return {
        "params": found.question.params,
        "rounds": found.question.rounds,
        "fetched": [
            {
                "donors": one.donors,
                **asdict(one.medians),
                "share": one.share,
                "share_of_buffer": one.share_of_buffer,
                "longest_wait": one.longest_wait,
                "update": asdict(one.update),
                "hivemind_ratio": found.ratio(one),
                "each": [asdict(each) for each in one.each],
            }
            for one in found.fetched
        ],
        "hivemind": {"seconds": found.hivemind_seconds, "each": list(found.hivemind)},
    }


def as_markdown(found: StateMeasured) -> str:
    """A table with a row for each number of donors, and what does not depend on it below."""
    size = found.question.size
    head = [
        "donors",
        "snapshot, s",
        "MB/s",
        "raw streams, s",
        "share of these",
        "raw from and to one buffer, s",
        "share of these",
        "longest wait for a donor's lock, s",
        "missed update, s",
        "its CPU-s",
        "its bytes, of a snapshot's",
        "hivemind takes",
    ]
    rows = [_row(one, size, found.ratio(one)) for one in found.fetched]
    lines = [f"{found.question.params / 1e6:g} M parameters, medians of {found.question.rounds} rounds", ""]
    lines += table(head, rows)
    if (seconds := found.hivemind_seconds) is not None:
        lines += [
            "",
            f"- hivemind loads as many bytes from one donor in {seconds:.2f} s, {size / seconds / 1e6:.0f} MB/s",
        ]
    return "\n".join(lines)


def _row(one: Fetched, size: int, ratio: float | None) -> list[str]:
    took = one.medians
    return [
        str(one.donors),
        shown(took.snapshot, ".3f"),
        shown(size / took.snapshot, ".0f", 1e6),
        shown(took.raw, ".3f"),
        shown(one.share, ".2f"),
        shown(took.raw_buffer, ".3f"),
        shown(one.share_of_buffer, ".2f"),
        shown(one.longest_wait, ".3f"),
        shown(one.update.seconds, ".2f"),
        shown(one.update.cpu, ".2f"),
        f"1/{1 / one.update.share:.1f}",
        "" if ratio is None else f"{ratio:.1f} times as long",
    ]
