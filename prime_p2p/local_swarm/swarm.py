"""A whole swarm on this machine: a bootstrap node and N peers as processes, watched, judged and reported."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from prime_p2p.errors import BadInput, PrimeError
from prime_p2p.lifetime import StopSignals, noting_stop_signals
from prime_p2p.local_swarm.children import Child, stop_all, wait_for_output
from prime_p2p.local_swarm.supervision import Limits, PeerProcess, Supervisor
from prime_p2p.monitor.console import SwarmConsole, open_console
from prime_p2p.monitor.metrics import FILE_NAME as METRICS_NAME
from prime_p2p.monitor.metrics import read_metrics
from prime_p2p.monitor.page import write_html
from prime_p2p.monitor.report import JSON_NAME, MODEL_NAME, PeerResult, RunFacts, build_report, write_json
from prime_p2p.monitor.view import SwarmView
from prime_p2p.recipe import Recipe

_SECONDS_PER_CROWDED_PEER = 15.0  # added to the time to start, for each peer that shares a core with others


# Exports the anchor of the newest checkpoint in the first of some folders that has one, and judges it: gives the
# validation loss before the first and after the last outer step.
Judge = Callable[[Recipe, Sequence[Path], Path], tuple[float, float]]


@dataclass(frozen=True)
class SwarmOptions:
    """What to run and where. ``overrides`` are "section.key=value", in the order of their importance, least first."""

    recipe: Path
    peers: int = 4
    overrides: tuple[str, ...] = ()
    out: Path | None = None  # None: a new folder below ./runs, named after the run
    console: TextIO = field(default_factory=lambda: sys.stderr)
    command: tuple[str, ...] = (sys.executable, "-m", "prime_p2p.cli")
    limits: Limits = field(default_factory=Limits)
    judge: Judge | None = None  # None: prime_p2p.training.outcome


class Interrupted(PrimeError):
    """The swarm was told to stop before its peers had started."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} before the first peer started")
        self.exit_code = 128 + number


def run(options: SwarmOptions) -> dict[str, Any]:
    """Start the swarm, wait for its end, and write the report; returns it.

    ``exit_code`` of the report is 0 when at least one peer made all outer steps, 128 + n when signal n stopped the
    swarm, and 1 otherwise; ``failure`` then says why in one line. No process is left behind, whatever happens.

    Raises:
        BadInput: The options or the recipe cannot be used.
        PrimeError: The bootstrap node does not start.
    """
    overrides = _overrides(options)
    recipe = Recipe.load(options.recipe, overrides)
    if recipe.run.outer_steps == 0:
        raise BadInput("run.outer_steps is 0, which is for ever: a local swarm needs an end, as in --outer-steps 30")
    directory = _new_directory(options.out, recipe.run.name)
    plan = _Plan(options, recipe, overrides, directory, threads_per_peer(options.peers))
    started_at, started = datetime.now(timezone.utc), time.monotonic()
    with noting_stop_signals() as signals:
        supervisor = _run_processes(plan, signals)
    facts = RunFacts(
        name=recipe.run.name,
        seed=recipe.run.seed,
        recipe=str(options.recipe),
        directory=str(directory),
        outer_steps=recipe.run.outer_steps,
        threads_per_peer=plan.threads,
        started_at=started_at.isoformat(timespec="seconds"),
        wall_seconds=time.monotonic() - started,
        events=tuple(supervisor.events),
        **_verdict(plan, supervisor.peers, signals),
    )
    report = build_report(facts, [_result(plan, peer) for peer in supervisor.peers])
    write_json(report, directory)
    write_html(report, directory)
    return report


def threads_per_peer(peers: int) -> int:
    """The cores this process may use, shared out; at least one each."""
    return max(1, len(os.sched_getaffinity(0)) // peers)


@dataclass(frozen=True)
class _Plan:
    options: SwarmOptions
    recipe: Recipe
    overrides: tuple[str, ...]
    directory: Path
    threads: int

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"peer-{number}" for number in range(1, self.options.peers + 1))

    @property
    def limits(self) -> Limits:
        crowd = max(0.0, self.options.peers - len(os.sched_getaffinity(0)))
        limits = self.options.limits
        return replace(limits, start=limits.start + crowd * _SECONDS_PER_CROWDED_PEER)

    @property
    def environment(self) -> Mapping[str, str]:
        return {"OMP_NUM_THREADS": str(self.threads), "PYTHONUNBUFFERED": "1"}

    def child(self, name: str, *arguments: str) -> Child:
        """Start one of our commands, with a folder of its own."""
        home = self.directory / name
        command = (*self.options.command, *arguments, "--identity", str(home / "identity.key"), "--stop-with-parent")
        return Child(name, command, home, self.environment)

    def peer(self, name: str, address: str) -> Child:
        sets = itertools.chain.from_iterable(("--set", override) for override in self.overrides)
        options = ("--recipe", str(self.options.recipe), "--bootstrap", address, "--dir", str(self.directory / name))
        here = ("--host", "127.0.0.1", "--port", "0")
        return self.child(
            name, "peer", *options, *here, "--name", name, "--threads", str(self.threads), "--json", *sets
        )


def _overrides(options: SwarmOptions) -> tuple[str, ...]:
    """The user's, after our own: the peers of a local swarm start its run, and together."""
    if options.peers < 1:
        raise BadInput(f"a swarm of {options.peers} peers has nobody to train; --peers must be at least 1")
    together = min(options.peers, Recipe.load(options.recipe, options.overrides).round.max_group)
    return (f"round.start_with={together}", "run.start=anyone", *options.overrides)


def _new_directory(asked: Path | None, name: str) -> Path:
    """The folder to write to, made: the one asked for, or the first of runs/NAME, runs/NAME-2, ... that is free."""
    if asked is not None:
        if (asked / JSON_NAME).exists():
            raise BadInput(f"{asked} holds the report of an earlier swarm; give another folder with --out")
        return _make(asked)
    for number in itertools.count(1):
        path = Path("runs") / (name if number == 1 else f"{name}-{number}")
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return _make(path)
    raise AssertionError("the counter has no end")


def _make(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot make the folder {path}: {error.strerror}; give another one with --out") from None
    return path


def _run_processes(plan: _Plan, signals: StopSignals) -> Supervisor:
    """The bootstrap node and the peers from their start to their end."""
    view = SwarmView(plan.recipe.run.name, plan.names, plan.recipe.run.outer_steps, time.monotonic())
    console = open_console(view, plan.options.console)
    children: list[Child] = []
    with ExitStack() as owned:
        owned.callback(lambda: console.close(time.monotonic()))
        owned.callback(lambda: stop_all(children, plan.options.limits.stop))
        bootstrap = plan.child("bootstrap", "bootstrap", "--port", "0", "--host", "127.0.0.1")
        children.append(bootstrap)
        address = _address(bootstrap, plan, console, signals)
        console.tell([f"bootstrap node at {address}"], time.monotonic())
        for name in plan.names:
            children.append(plan.peer(name, address))
        supervisor = Supervisor(children[1:], bootstrap, view, console, plan.limits)
        supervisor.run(signals)
        return supervisor


def _address(bootstrap: Child, plan: _Plan, console: SwarmConsole, signals: StopSignals) -> str:
    """The one line that a bootstrap node prints: its multiaddress."""
    deadline = time.monotonic() + plan.limits.start
    said = b""
    while b"\n" not in said:
        wait_for_output([bootstrap], 0.1)
        ended = bootstrap.check()
        said += bootstrap.read()
        if signals.first is not None:
            raise Interrupted(signals.first)
        if b"\n" not in said and ended:
            raise PrimeError(f"the bootstrap node did not start: {bootstrap.ending()}: {bootstrap.last_words()}")
        if time.monotonic() > deadline:
            raise PrimeError(f"the bootstrap node did not start within {plan.limits.start:.0f} s")
        console.refresh(time.monotonic())
    return said.split(b"\n", 1)[0].decode("utf-8", "replace").strip()


def _verdict(plan: _Plan, peers: Sequence[PeerProcess], signals: StopSignals) -> dict[str, Any]:
    """The fields of ``RunFacts`` that say how it went: validation losses, failure, exit code."""
    goal = plan.recipe.run.outer_steps
    if signals.first is not None:
        name = signal.Signals(signals.first).name
        return {"failure": f"stopped by {name} before the end", "exit_code": 128 + signals.first}
    finished = [peer for peer in peers if peer.finished]
    if not finished:
        said = peers[0].child.last_words(1)
        more = f" (and {len(peers) - 1} more)" if len(peers) > 1 else ""
        why = f"{peers[0].name}: {peers[0].ending}" + (f": {said}" if said else "") + more
        return {"failure": f"no peer made all {goal} outer steps: {why}; see {plan.directory}", "exit_code": 1}
    judge = plan.options.judge or _default_judge()
    folders = [plan.directory / peer.name / "checkpoints" for peer in finished]
    try:
        start, end = judge(plan.recipe, folders, plan.directory / MODEL_NAME)
    except PrimeError as error:
        return {"failure": f"the final model cannot be judged: {error}", "exit_code": 1}
    return {"val_start": start, "val_end": end}


def _default_judge() -> Judge:
    """Imported when it is needed: it loads torch."""
    from prime_p2p.training.outcome import judge

    return judge


def _result(plan: _Plan, peer: PeerProcess) -> PeerResult:
    metrics = tuple(read_metrics(plan.directory / peer.name / METRICS_NAME))
    return PeerResult(peer.name, peer.peer_id, peer.finished, peer.ending, metrics)
