"""The chaos suite: peers of the real product on hosts of their own, one fault after the other, and a report.

python tests/chaos/chaos.py --minutes 30 --faults 200 --report report.json

After each fault the survivors must go on within the detection time plus one more round, on one lineage, with exact
means and no outer step lost; and the peer it struck must be one of them again. Needs Linux with ``ip`` and ``unshare``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import chaos_peer
import psutil
from chaos_peer import Armed, Place
from faults import ANY_TIME, Fault, Kind, schedule
from ledger import AROUND, Ledger
from report import Outcome, make_report, summary

from prime_p2p.errors import BadInput
from prime_p2p.lab.hosts import Hosts, enclosed
from prime_p2p.network.identity import Identity

PEERS = 8
PORT = 31337
STALL = 5.0  # seconds: the detection time of the peers
TOGETHER = 90.0  # seconds for all to be in one group again, before it counts as a hang
STRUCK = 45.0  # seconds for a point to be reached
STARTING = 20.0  # seconds for a bootstrap node to be up
LEAVING = 20.0  # seconds to stop in good order
ANEW = 0.25  # of the peers that are started again have lost all but their identity
MOST_UNEXPECTED = 10  # peers that end by themselves before the suite gives up

SETTINGS = {
    "run.name": "chaos",
    "run.outer_steps": 0,
    "model.hidden_size": 64,
    "model.intermediate_size": 1024,
    "model.layers": 2,
    "model.heads": 2,
    "model.kv_heads": 2,
    "model.context": 16,
    "inner.batch_size": 1,
    "round.inner_steps": 10,
    "round.patience": 10.0,
    "round.grace": 3.0,
    "round.stall_timeout": STALL,
    "round.start_with": PEERS,
    "eval.every": 0,
    "checkpoint.every": 10,
    "checkpoint.keep": 1,
}


@dataclass
class Running:
    """One process of a peer, and our end of its line."""

    process: BaseProcess
    link: Connection
    directory: Path


class Suite:
    """The hosts, the processes on them, and the faults. Times are in seconds of the system's monotonic clock."""

    def __init__(self, folder: Path, seed: int, verbose: bool) -> None:
        self._folder = folder
        self._dice = random.Random(seed)
        self.names = [f"peer{number}" for number in range(PEERS)]
        half = PEERS // 2
        self._hosts = Hosts([["bootstrap", *self.names[:half]], self.names[half:]])
        exchange = folder / "exchange"
        exchange.mkdir(parents=True)
        self._exchange = exchange
        self._ids = {
            name: Identity.load_or_create(folder / f"{name}.key").peer_id for name in [*self.names, "bootstrap"]
        }
        self.ledger = Ledger(exchange, {peer_id: name for name, peer_id in self._ids.items()})
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(
            ["prime_p2p.peer", "prime_p2p.peer_process", "prime_p2p.cli", "chaos_peer"]
        )
        self._peers: dict[str, Running] = {}
        self._bootstrap: BaseProcess | None = None
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._struck: tuple[str, float] | None = None
        self._claims = 0
        self.clean: list[float] = []  # seconds of rounds in which nothing happened
        self.unexpected: list[str] = []
        text = folder / "text.txt"
        text.write_text("\n".join(f"{n} times {n} is {n * n}" for n in range(20000)))
        self._sets = [f"--set={key}={value}" for key, value in (SETTINGS | {"data.source": text}).items()]
        self._sets += ["--verbose"] if verbose else []

    # ---- processes

    def start_bootstrap(self) -> None:
        arguments = ["bootstrap", "--host", self._hosts.address("bootstrap"), "--port", str(PORT)]
        arguments += ["--identity", str(self._folder / "bootstrap.key")]
        place = Place("bootstrap", self._folder / "bootstrap", self._exchange)
        self._bootstrap = self._context.Process(target=chaos_peer.run_bootstrap, args=(place, arguments))
        self._bootstrap.start()
        log = place.directory / "log"
        before = log.stat().st_size if log.exists() else 0
        self.until(lambda: log.exists() and log.stat().st_size > before, STARTING)  # it prints its address

    def start(self, name: str, armed: Armed | None = None) -> None:
        """Start a peer, with the folder that its forerunner left."""
        ours, theirs = multiprocessing.Pipe()
        directory = self._folder / name
        known = ("bootstrap", *self._dice.sample(self.names, 2))
        addresses = [f"/ip4/{self._hosts.address(host)}/tcp/{PORT}/p2p/{self._ids[host]}" for host in known]
        arguments = ["peer", "--recipe", "peers/tiny.toml", "--dir", str(directory), "--threads", "1", "--json"]
        arguments += ["--host", self._hosts.address(name), "--port", str(PORT)]
        arguments += ["--identity", str(self._folder / f"{name}.key"), *self._sets]
        arguments += [part for address in addresses for part in ("--bootstrap", address)]
        place = Place(name, directory, self._exchange)
        process = self._context.Process(target=chaos_peer.run_peer, args=(place, arguments, theirs, armed))
        process.start()
        theirs.close()
        self._peers[name] = Running(process, ours, directory)

    def _ended(self, name: str) -> int | None:
        running = self._peers.pop(name)
        running.process.join(5)
        running.link.close()
        return running.process.exitcode

    def end(self) -> dict[str, Any]:
        """Ask everyone to leave; returns what is left of them."""
        late = []
        for running in self._peers.values():
            self._signal(running.process, signal.SIGTERM)
        deadline = time.monotonic() + LEAVING
        for name, running in self._peers.items():
            while running.process.is_alive() and time.monotonic() < deadline:
                with suppress(EOFError, OSError):
                    if running.link.poll(0.1):
                        running.link.recv()
            if running.process.is_alive() or running.process.exitcode:
                late.append(f"{name} ended with {running.process.exitcode}")
        if self._bootstrap is not None:
            self._signal(self._bootstrap, signal.SIGTERM)
            self._bootstrap.join(LEAVING)
        left = [process for process in psutil.process_iter() if process.name() in ("p2pd", "sh") and process.pid > 2]
        _, left = psutil.wait_procs(left, timeout=10)
        folders = [path.name for path in Path(tempfile.gettempdir()).glob("prime-p2p-*")]
        return {"not_in_good_order": late, "processes": [p.name() for p in left], "folders": folders}

    @staticmethod
    def _signal(process: BaseProcess, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(process.pid or 0, number)

    # ---- time

    def pump(self, seconds: float) -> None:
        """Take what peers tell for so long, and do what is due."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            due = [timer for timer in self._timers if timer[0] <= now]
            self._timers = [timer for timer in self._timers if timer[0] > now]
            for _, act in due:
                act()
            links = {running.link: name for name, running in self._peers.items()}
            pause = min([until, *(at for at, _ in self._timers)]) - time.monotonic()
            for link in wait(list(links), timeout=max(0.0, pause)):
                self._take(links[link], link)  # type: ignore[index, arg-type]
            if time.monotonic() >= until:
                return

    def _take(self, name: str, link: Connection) -> None:
        try:
            what, details = link.recv()
        except (EOFError, OSError):
            running = self._peers[name]
            code = self._ended(name)
            if self._struck is None or self._struck[0] != name:
                log = (running.directory / "log").read_text().splitlines()[-3:]
                self.unexpected.append(f"{name} ended with {code}: {' / '.join(log)}")
                if len(self.unexpected) <= MOST_UNEXPECTED:
                    self.start(name)
            return
        if what == "struck":
            self._struck = (name, details["at"])
        self.ledger.take(name, self._peers[name].process.pid or 0, what, details)

    def until(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Pump until the condition holds; False where it did not in time."""
        end = time.monotonic() + deadline
        while not condition():
            if time.monotonic() > end:
                return False
            self.pump(0.05)
        return True

    def together(self, peers: Collection[str], since: float, times: int = 1) -> bool:
        """Wait until a group of exactly these peers has committed since then."""
        return self.until(lambda: self.ledger.made_together(peers, since) >= times, TOGETHER)

    # ---- faults

    def inject(self, fault: Fault) -> Outcome:
        """Have the fault strike, see the survivors go on, and have the struck peer back: all are in a group again."""
        began = time.monotonic()
        victim, at = self._strike(fault)
        if not victim:
            return Outcome(str(fault), fault.kind, "", began, hang="its point was not reached")
        outcome = Outcome(str(fault), fault.kind, victim, at)
        forks = len(self.ledger.forks)
        survivors = [name for name in self.names if name != victim]
        if fault.kind is not Kind.PARTITION and not self.until(lambda: self._gone_on(survivors, at), TOGETHER):
            outcome.hang = "the survivors did not go on"
        healed = self._recover(fault, victim)
        if not self.together(self.names, healed, times=3) and not outcome.hang:
            outcome.hang = "it did not come back"
        now = time.monotonic()
        self.clean += self.ledger.intervals(self.names, healed, now)
        outcome.wait = self.ledger.longest_wait(survivors, at)
        outcome.attempts = self.ledger.attempts(survivors, at)
        outcome.recovered = now - healed
        if fault.kind is not Kind.PARTITION:
            outcome.lost_steps = self.ledger.lost_steps(survivors, began, now)
            outcome.missed = self.ledger.why_missed(outcome.lost_steps, began, now)
        outcome.forks = len(self.ledger.forks) - forks
        self._struck = None
        return outcome

    def _gone_on(self, survivors: Collection[str], since: float) -> bool:
        return len(self.ledger.common(survivors, since)) >= AROUND

    def _strike(self, fault: Fault) -> tuple[str, float]:
        """Returns whom it struck, and when."""
        self._struck = None
        if fault.point == ANY_TIME:
            self.pump(self._dice.uniform(0.0, 3.0))
            return self._strike_now(fault)
        self._claims += 1
        armed = Armed(fault, self._folder / f"claim{self._claims}")
        if fault.point == "joining":
            name = self._dice.choice(self.names)
            self._struck = (name, time.monotonic())
            self._signal(self._peers[name].process, signal.SIGTERM)
            self.until(lambda: name not in self._peers, LEAVING)
            self._struck = None
            self.start(name, armed)
        else:
            for running in self._peers.values():
                running.link.send(armed)
        self.until(lambda: self._struck is not None, STRUCK)
        if self._struck is None:
            return "", 0.0
        self._follow_up(fault, self._struck[0])
        return self._struck

    def _strike_now(self, fault: Fault) -> tuple[str, float]:
        at = time.monotonic()
        if fault.kind is Kind.PARTITION:
            self._hosts.split()
            self._later(fault.seconds, self._hosts.join)
            return "half of them", at
        if fault.kind is Kind.BOOTSTRAP:
            assert self._bootstrap is not None
            self._signal(self._bootstrap, signal.SIGKILL)
            self._bootstrap.join(5)
            return "bootstrap", at
        name = self._dice.choice(self.names)
        self._struck = (name, at)
        numbers = {Kind.KILL: signal.SIGKILL, Kind.FREEZE: signal.SIGSTOP, Kind.LEAVE: signal.SIGTERM}
        if fault.kind in numbers:
            self._signal(self._peers[name].process, numbers[fault.kind])
        self._follow_up(fault, name)
        return name, at

    def _follow_up(self, fault: Fault, name: str) -> None:
        """What the struck peer does not do to itself, and what ends the fault."""
        process = self._peers[name].process if name in self._peers else None
        if fault.kind is Kind.FREEZE and process is not None:
            self._later(fault.seconds, lambda: self._signal(process, signal.SIGCONT))
        elif fault.kind is Kind.SUSPEND and process is not None:
            self._later(fault.seconds, lambda: os.killpg(process.pid or 0, signal.SIGCONT))
        elif fault.kind is Kind.CUT:
            self._hosts.cut(name)
            self._later(fault.seconds, lambda: self._hosts.heal(name))
            with suppress(OSError):
                self._peers[name].link.send("go")

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._timers.append((time.monotonic() + seconds, act))

    def _recover(self, fault: Fault, victim: str) -> float:
        """Wait for the end of the fault, and start anew what it ended; returns when that was."""
        self.until(lambda: not self._timers, fault.seconds + 5.0)
        if fault.kind is Kind.BOOTSTRAP:
            self.start_bootstrap()
        elif fault.kind.ends_its_peer:
            if not self.until(lambda: victim not in self._peers, LEAVING):
                self.unexpected.append(f"{victim} did not end")
                self._signal(self._peers[victim].process, signal.SIGKILL)
                self.until(lambda: victim not in self._peers, LEAVING)
            self._struck = None
            if self._dice.random() < ANEW:
                shutil.rmtree(self._folder / victim)
            self.start(victim)
        return time.monotonic()


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the suite inside the namespaces it is in, and return its report."""
    began = time.monotonic()
    suite = Suite(folder, options.seed, options.verbose)
    suite.start_bootstrap()
    for name in suite.names:
        suite.start(name)
    if not suite.together(suite.names, began, times=3):
        suite.unexpected.append("not all peers were in a group before the first fault")
    outcomes: list[Outcome] = []
    for fault in schedule(options.seed):
        if time.monotonic() - began > 60 * options.minutes or len(outcomes) >= options.faults:
            break
        if len(suite.unexpected) > MOST_UNEXPECTED:
            break  # nothing works
        if options.only not in str(fault):
            continue
        outcome = suite.inject(fault)
        outcomes.append(outcome)
        print(f"{time.monotonic() - began:6.0f} s  {outcome}", flush=True)
    left = suite.end()
    return make_report(suite.ledger, outcomes, suite.clean, suite.unexpected, left) | {
        "seed": options.seed,
        "seconds": round(time.monotonic() - began, 1),
        "peers": PEERS,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Break peers of a real swarm, one after the other, and see it go on.")
    parser.add_argument("--minutes", type=float, default=5.0, help="no fault is begun after so long")
    parser.add_argument("--faults", type=int, default=200, help="how many faults at most")
    parser.add_argument("--seed", type=int, default=1, help="the order of the faults")
    parser.add_argument("--report", type=Path, default=Path("report.json"))
    parser.add_argument("--folder", type=Path, help="keep the peers' files and logs here")
    parser.add_argument("--only", default="", help="only faults with this in their name, as in 'cut' or 'voting'")
    parser.add_argument("--verbose", action="store_true", help="have the peers log what happens in detail")
    parser.add_argument("--enclosed", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.enclosed:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        try:
            again = enclosed([sys.executable, *sys.argv, "--enclosed"])
        except BadInput as error:
            print(f"chaos: {error}", file=sys.stderr)
            return error.exit_code
        # A short path, for sockets; it is also what must be empty in the end.
        with tempfile.TemporaryDirectory(prefix="pp", dir="/tmp") as temporary:
            own = {"TMPDIR": temporary, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            return subprocess.call(again, env=os.environ | own)
    folder = options.folder or Path(tempfile.gettempdir()) / "run"
    report = run(options, folder)
    options.report.write_text(json.dumps(report, indent=2) + "\n")
    print(summary(report))
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
