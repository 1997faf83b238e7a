"""Stands in for the command line of prime-p2p: fake peers that emit events without training, and a driver.

FAKE_PEERS in the environment is a JSON object that gives single peers another behaviour than "normal".
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from prime_p2p.lifetime import stop_with_parent
from prime_p2p.monitor.events import EventWriter, Progress, State
from prime_p2p.monitor.metrics import FILE_NAME, MetricsLog, PhaseSeconds, RoundMetrics

LONG = 600.0  # seconds; longer than any test


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def bootstrap() -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    print("/ip4/127.0.0.1/tcp/1/p2p/fake", flush=True)
    stop_with_parent(stop.set)
    stop.wait(LONG)


def metrics(step: int, digest: str) -> RoundMetrics:
    seconds = PhaseSeconds(0.8, 0.05, 0.05, 0.05, 0.01, 1.0)
    return RoundMetrics(step, digest, ("a", "b"), (64, 64), 1, 5.0 / step, 64, 1000, 1000, seconds)


def peer() -> None:
    home = Path(option("--dir"))
    (home / "pid").write_text(str(os.getpid()))
    behaviour = json.loads(os.environ.get("FAKE_PEERS", "{}")).get(home.name, "normal")
    steps = int(next(text for text in reversed(sys.argv) if text.startswith("run.outer_steps=")).partition("=")[2])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == "deaf" else lambda *_: stop.set())
    stop_with_parent(stop.set, patience=1.0)
    events = EventWriter.on_stdout()
    if behaviour == "refuses":
        print("prime-p2p: no such text", file=sys.stderr)
        sys.exit(2)
    if behaviour == "silent":
        stop.wait(LONG)
        return
    events.ready(f"12D3KooW{home.name}", "/ip4/127.0.0.1/tcp/2/p2p/fake")
    print("a library that prints on standard output")
    with MetricsLog(home / FILE_NAME) as log:
        for step in range(1, steps + 1):
            digest = f"{step:064x}" if behaviour != "forks" else f"{step + 1:064x}"
            events.progress(Progress(step - 1, 1, 2, 5.0, 100.0, 2, 1000 * step, State.TRAINING))
            log.append(metrics(step, digest))
            events.outer_step(metrics(step, digest))
            if behaviour == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if behaviour == "freezes":
                os.kill(os.getpid(), signal.SIGSTOP)
            if behaviour in ("waits", "deaf"):
                while behaviour == "deaf":
                    time.sleep(LONG)
                stop.wait(LONG)
            if stop.is_set():
                return
    events.done(steps, f"{steps:064x}")


def swarm() -> None:
    """Run a swarm of these peers to the end, and exit as the command line does."""
    from prime_p2p.builtin_recipes import find_recipe
    from prime_p2p.local_swarm import swarm as local_swarm
    from prime_p2p.local_swarm.supervision import Limits

    report = local_swarm.run(
        local_swarm.SwarmOptions(
            recipe=find_recipe("tiny"),
            peers=2,
            overrides=("run.outer_steps=3",),
            out=Path(option("--out")),
            command=(sys.executable, __file__),
            limits=Limits(stop=2.0),
            judge=lambda *_: (5.0, 4.0),
        )
    )
    sys.exit(report["exit_code"])


if __name__ == "__main__":
    {"bootstrap": bootstrap, "peer": peer, "swarm": swarm}[sys.argv[1]]()
