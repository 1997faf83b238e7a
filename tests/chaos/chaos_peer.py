"""A peer as a user runs it, with named points at which a fault can strike it, and a line to the suite.

The peer is the product's own command in a process of its own. What is added: at named points it asks whether a fault is
due, and it tells what it brought to each round and what came of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from faults import Fault, Kind

from prime_p2p.lab.hosts import enter

CHUNK_BLOCKS = 16  # a small model's part in more than one chunk
SOME_VOTES = 0.05  # seconds for the votes that were sent to be on their way


@dataclass(frozen=True)
class Place:
    """Where a peer runs: its host, its folder, and the folder that all share with the suite."""

    name: str
    directory: Path
    exchange: Path


@dataclass(frozen=True)
class Armed:
    """A fault that waits for its point; whoever makes the file ``claim`` is the one it strikes."""

    fault: Fault
    claim: Path


def run_peer(place: Place, arguments: list[str], link: Connection, armed: Armed | None) -> None:
    """The body of the process: ``prime-p2p`` with ``arguments``, on its host, with the points in place."""
    _settle_in(place)
    _add_points(Points(link, armed), place)
    _run_command(arguments)


def run_bootstrap(place: Place, arguments: list[str]) -> None:
    """The same for a bootstrap node, which has no points."""
    _settle_in(place)
    _run_command(arguments)


def _settle_in(place: Place) -> None:
    os.setpgid(0, 0)
    enter(place.name)
    place.directory.mkdir(parents=True, exist_ok=True)
    log = os.open(place.directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)


def _run_command(arguments: list[str]) -> None:
    from prime_p2p import cli

    sys.argv = ["prime-p2p", *arguments]
    cli.main()


class Points:
    """What this process tells the suite, and the fault that waits for it. Called from any thread."""

    def __init__(self, link: Connection, armed: Armed | None) -> None:
        self._link = link
        self._sending = threading.Lock()
        self._armed = armed
        self._go = threading.Event()
        self.tasks = 0  # in the event loop, when it last looked
        threading.Thread(target=self._listen, daemon=True, name="orders").start()

    def tell(self, what: str, **details: Any) -> None:
        with self._sending:
            self._link.send((what, details | {"at": time.monotonic()}))

    def _listen(self) -> None:
        while True:
            try:
                order = self._link.recv()
            except (EOFError, OSError):
                os.kill(os.getpid(), signal.SIGKILL)  # the suite is gone
            if order == "go":
                self._go.set()
            else:
                self._armed = order

    def waits_for(self, point: str, leads: bool) -> Fault | None:
        """The fault that strikes at this point, if it is ours to take."""
        armed = self._armed
        if armed is None or armed.fault.point != point or armed.fault.leader not in (None, leads):
            return None
        self._armed = None
        try:
            armed.claim.touch(exist_ok=False)
        except FileExistsError:
            return None
        return armed.fault

    def reach(self, point: str, leads: bool = False) -> None:
        fault = self.waits_for(point, leads)
        if fault is not None:
            self.strike(fault)

    def strike(self, fault: Fault) -> None:
        self.tell("struck")
        if fault.kind is Kind.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.kind is Kind.FREEZE:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fault.kind is Kind.SUSPEND:
            os.killpg(0, signal.SIGSTOP)
        elif fault.kind is Kind.LEAVE:
            os.kill(os.getpid(), signal.SIGTERM)
        elif fault.kind is Kind.DAEMON:
            for child in psutil.Process().children():
                if child.name() == "p2pd":
                    child.kill()
        elif fault.kind is Kind.CUT:
            self._go.wait(5)
            self._go.clear()


def _add_points(points: Points, place: Place) -> None:
    from prime_p2p.allreduce import plan

    plan.CHUNK_BLOCKS = CHUNK_BLOCKS
    _watch_training(points)
    _watch_gathering(points)
    _watch_reduce(points)
    _watch_votes(points)
    _watch_rounds(points, place.exchange)


def _before(owner: type, name: str, act: Callable[..., None]) -> None:
    """Have ``act`` called, with the same arguments, before a method."""
    method = getattr(owner, name)

    def both(*args: Any, **kwargs: Any) -> Any:
        act(*args, **kwargs)
        return method(*args, **kwargs)

    setattr(owner, name, both)


def _after(owner: type, name: str, act: Callable[..., None]) -> None:
    """Have ``act`` called after a method, with its result before its arguments."""
    method = getattr(owner, name)

    def both(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        act(result, *args, **kwargs)
        return result

    setattr(owner, name, both)


def _watch_training(points: Points) -> None:
    from prime_p2p.diloco import DiLoCo
    from prime_p2p.monitor.metrics import MetricsLog
    from prime_p2p.news import News
    from prime_p2p.peer import Peer

    process = psutil.Process()

    def leads(diloco: DiLoCo, result: Any) -> bool:
        return bool(result.group.peer_ids[0] == diloco.swarm.peer_id)

    def joined(result: None, diloco: DiLoCo, *_: Any, **__: Any) -> None:
        points.tell("joined", step=diloco.state.step, digest=diloco.state.digest.hex())

    def committed(result: None, log: MetricsLog, metrics: Any) -> None:
        resources = {"rss": process.memory_info().rss, "descriptors": process.num_fds(), "tasks": points.tasks}
        points.tell("committed", **metrics.to_json(), **resources)

    def caught_up(moved: bool, diloco: DiLoCo, ask_everyone: bool = False) -> None:
        if moved:
            points.tell("caught up", step=diloco.state.step, digest=diloco.state.digest.hex())

    _before(DiLoCo, "_join", lambda *_, **__: points.reach("joining"))
    _after(DiLoCo, "_join", joined)
    _before(Peer, "inner_step", lambda peer: points.reach("training"))
    _before(DiLoCo, "_apply", lambda diloco, result: points.reach("applying", leads(diloco, result)))
    _after(DiLoCo, "_apply", lambda _, diloco, result: points.reach("applied", leads(diloco, result)))
    _after(DiLoCo, "catch_up", caught_up)
    _after(MetricsLog, "append", committed)
    _before(News, "missed", lambda news, outcome: points.tell("missed", reason=outcome.round.reason))


def _watch_gathering(points: Points) -> None:
    from prime_p2p.swarm.links import Links
    from prime_p2p.swarm.messages import Join
    from prime_p2p.swarm.runner import RoundRunner

    def sent(result: None, links: Links, peer: str, message: Any) -> None:
        if isinstance(message, Join):
            points.reach("gathering", leads=False)

    def received(result: None, runner: RoundRunner, peer: str, message: Any) -> None:
        if isinstance(message, Join):
            points.reach("gathering", leads=True)

    def count_tasks(runner: RoundRunner, *state: Any) -> None:
        points.tasks = len(asyncio.all_tasks())

    _after(Links, "send", sent)
    _after(RoundRunner, "_on_message", received)
    _before(RoundRunner, "state_changed", count_tasks)


def _watch_reduce(points: Points) -> None:
    from prime_p2p.allreduce.butterfly import Exchange

    taken: dict[int, int] = {}

    def begun(exchange: Exchange, open_stream: Any) -> None:
        taken.clear()
        taken[id(exchange)] = 0

    async def take_chunk(exchange: Exchange, stream: Any, chunk: Any) -> None:
        await original(exchange, stream, chunk)
        plan = exchange.plan
        senders = [peer for peer in plan.contributors if peer != plan.me]
        expected = len(senders) * len(plan.chunks(plan.me)) + sum(len(plan.chunks(peer)) for peer in plan.others)
        before = taken.get(id(exchange), 0)
        taken[id(exchange)] = before + 1
        for percent in (10, 50, 90):
            if before < percent / 100 * expected <= before + 1:
                points.reach(f"reducing-{percent}", leads=plan.peer_ids[0] == plan.me)

    original = Exchange._take_chunk
    _before(Exchange, "run", begun)
    Exchange._take_chunk = take_chunk  # type: ignore[method-assign]


def _watch_votes(points: Points) -> None:
    from prime_p2p.swarm import events as ev
    from prime_p2p.swarm.messages import Vote
    from prime_p2p.swarm.runner import RoundRunner

    original = RoundRunner._do
    state: dict[str, Any] = {"group": None, "sent": 0, "held": None}

    def do(runner: RoundRunner, action: ev.Action) -> None:
        if isinstance(action, ev.StartReduce):
            state.update(group=action.group, sent=0, held=None)
        if not isinstance(action, ev.Send) or not isinstance(action.message, Vote):
            original(runner, action)
            return
        leads = state["group"].peer_ids[0] == runner._machine.me
        if state["sent"] == 0:
            points.reach("voting", leads)
        if state["sent"] == len(state["group"].members) // 2:
            state["held"] = points.waits_for("voted-some", leads)
            if state["held"] is not None:
                asyncio.get_running_loop().call_later(SOME_VOTES, points.strike, state["held"])
        state["sent"] += 1
        if state["held"] is None or state["held"].kind is not Kind.KILL:  # one that lives sends them all in the end
            original(runner, action)

    RoundRunner._do = do  # type: ignore[method-assign]


def _watch_rounds(points: Points, exchange: Path) -> None:
    """Leave what a peer brought to a round, and what came of it, where the suite can check the mean."""
    from prime_p2p.swarm.swarm import Swarm

    original = Swarm.make_round

    def make_round(swarm: Swarm, mine: Any, update: Any, weight: int, terms: bytes = b"") -> Any:
        held = swarm._membership.mine
        before = {"step": held.step, "before": held.digest.hex()}
        _write(exchange / f"{held.step}-{held.digest.hex()[:16]}-{swarm.peer_id}", mine)
        points.tell("ready", **before, weight=weight)
        result = original(swarm, mine, update, weight, terms)
        if result.group is not None:
            _write(exchange / f"update-{result.group.id.hex()[:16]}", update)
            weights = {member.peer_id: member.weight for member in result.group.members}
            digest = update.digest().hex()
            points.tell("round", **before, group=result.group.id.hex(), weights=weights, update=digest)
        return result

    Swarm.make_round = make_round  # type: ignore[method-assign]


def _write(path: Path, vector: Any) -> None:
    unfinished = path.with_name(f".{path.name}-{os.getpid()}")
    with unfinished.open("wb") as file:
        for buffer in vector.buffers():
            file.write(buffer)
    unfinished.rename(path)
