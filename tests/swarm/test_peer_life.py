"""Peers that start where others have just died, lose their terminal, or sleep."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import base58
import psutil
import pytest
from processes import COMMAND, PATIENCE, agree, free_port, network, peer_arguments

from prime_p2p.monitor.metrics import read_metrics

pytestmark = pytest.mark.timeout(300)


@contextmanager
def busy_processor(processes: int) -> Iterator[None]:
    """So many other processes want all of the processor."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def saved_steps(folder: Path) -> list[int]:
    """The outer steps of the checkpoints in the folder of a peer."""
    numbers = [json.loads(path.read_text())["numbers"] for path in folder.glob("checkpoints/*/checkpoint.json")]
    return [number["step"] for number in numbers]


def steps_made(folder: Path) -> int:
    return len(list(read_metrics(folder / "metrics.jsonl"))) if (folder / "metrics.jsonl").exists() else 0


def test_a_peer_that_was_killed_starts_again_at_once_on_a_busy_machine_and_nothing_is_left_of_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--port", str(free_port())]
    with tempfile.TemporaryDirectory(prefix="pp", dir="/tmp") as temporary, network(tmp_path) as (_, _, start):
        monkeypatch.setenv("TMPDIR", temporary)
        killed = start("peer", options=options)
        before = killed.event("ready")
        killed.event("outer_step")
        left = list(Path(temporary).glob("prime-p2p-*"))
        assert left
        for child in killed.children():
            if child.name() != "p2pd":  # what would have tidied up
                child.kill()
        with busy_processor(4):
            killed.signal(signal.SIGKILL)
            again = start("peer", options=options)
            assert again.event("ready") == before
        for _ in range(4):  # meanwhile it sees heartbeats of its own identity
            again.event("outer_step")
        assert not [path for path in left if path.exists()]
        again.signal(signal.SIGTERM)
        assert again.wait() == 0
        assert not list(Path(temporary).glob("prime-p2p-*"))
        kept = {path.name for path in (tmp_path / "peer").iterdir()}
    made = {"checkpoints", "journal", "metrics.jsonl", "samples.jsonl"}
    assert kept == made | {".lock", "identity.key", "peers.json"}


def encodings(secret: bytes) -> list[str]:
    """How a text may show some bytes, in parts or as a whole; base64 shows them in three ways, by where they begin."""
    shown = [secret.hex(), secret.hex(" "), secret.hex(":"), repr(secret)[2:-1], base58.b58encode(secret).decode()]
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        shown += [encode(bytes(before) + secret)[4:-4].decode() for before in range(3)]
    return shown


def test_copies_of_a_peer_that_lives_end_and_debug_logs_hold_no_key(tmp_path: Path) -> None:
    logging = ["--log-level", "debug", "--log-format", "json"]
    with network(tmp_path) as (_, _, start):
        first = start("first", options=logging)
        peer_id = first.event("ready")["peer_id"]
        first.event("outer_step")
        copies = []
        for start_of_run in ("anyone", "nobody"):  # one that trains, and one that waits for somebody else's state
            (tmp_path / start_of_run).mkdir()
            shutil.copy(tmp_path / "first" / "identity.key", tmp_path / start_of_run)
            copy = start(start_of_run, options=logging, **{"run.start": start_of_run})
            copies.append(copy)
            assert copy.wait() == 2
            last = copy.stderr.splitlines()[-1]
            assert last.startswith(f"prime-p2p: another process is peer {peer_id} already"), copy.stderr
        for _ in range(3):
            first.event("outer_step")
        first.signal(signal.SIGTERM)
        assert first.wait() == 0
    processes = (first, *copies)
    lines = [line for process in processes for line in process.stderr.splitlines()]
    logged = [json.loads(line) for line in lines if not line.startswith("prime-p2p: ")]
    assert {line["run"] for line in logged} == {"tiny"}
    assert {line["peer"] for line in logged} - {None} == {peer_id[-8:]}
    assert {"debug", "info"} <= {line["level"] for line in logged} <= {"debug", "info", "warning"}
    assert max(line["outer_step"] or 0 for line in logged) >= 4
    key = (tmp_path / "first" / "identity.key").read_bytes()
    everything = "\n".join([*lines, *(line for process in processes for line in process.lines)])
    for secret in (key[4:36], key[4:], key):
        assert not [shown for shown in encodings(secret) if shown in everything]


def test_a_peer_whose_terminal_or_reader_goes_away_loses_nothing(tmp_path: Path) -> None:
    with network(tmp_path) as (_, address, _):
        ours, terminal = os.openpty()
        # The leader of a session gets the first terminal that it opens.
        opens_it = ["sh", "-c", f'exec "$@" <{os.ttyname(terminal)} >&0 2>&0', "sh"]
        in_terminal = subprocess.Popen(
            [*opens_it, *COMMAND, *peer_arguments(address, tmp_path / "terminal", **{"run.name": "one"})],
            start_new_session=True,
        )
        os.close(terminal)
        read = subprocess.Popen(
            [*COMMAND, *peer_arguments(address, tmp_path / "pipe", **{"run.name": "two"}), "--verbose"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            assert read.stdout is not None
            read.stdout.readline()
            read.stdout.close()
            until_it_made(1, tmp_path / "terminal")
            os.close(ours)
            assert in_terminal.wait(PATIENCE) == 0
            until_it_made(3, tmp_path / "pipe")
            read.terminate()
            assert read.wait(PATIENCE) == 0
        finally:
            for process in (in_terminal, read):
                process.kill()
                process.wait()
    for folder in (tmp_path / "terminal", tmp_path / "pipe"):
        assert steps_made(folder) in saved_steps(folder)


def until_it_made(steps: int, folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while steps_made(folder) < steps:
        assert time.monotonic() < deadline, f"no {steps} outer steps in {folder}"
        time.sleep(0.05)


# Every process has clocks that are ahead by what a file says, and that go on while it is stopped; but for the monotonic
# one, which stands still while a machine sleeps.
SHARED_CLOCKS = """
import mmap, struct, time
with open({path!r}, "rb") as file:
    ahead = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)
right, steady = time.time, time.clock_gettime
time.time = lambda: right() + struct.unpack("d", ahead)[0]
def clock_gettime(clock):
    return steady(clock) + (struct.unpack("d", ahead)[0] if clock in (time.CLOCK_BOOTTIME, time.CLOCK_REALTIME) else 0)
time.clock_gettime = clock_gettime
"""


def test_a_peer_whose_machine_slept_for_an_hour_makes_outer_steps_with_the_others_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = tmp_path / "ahead"
    ahead.write_bytes(struct.pack("d", 0.0))
    (tmp_path / "clocks").mkdir()
    (tmp_path / "clocks" / "sitecustomize.py").write_text(SHARED_CLOCKS.format(path=str(ahead)))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "clocks"), os.environ.get("PYTHONPATH", "")]))
    with network(tmp_path) as (_, _, start):
        peers = [start(name, **{"round.start_with": 3}) for name in ("one", "two", "sleeper")]
        for peer in peers:
            peer.outer_step(lambda step: len(step["group"]) == 3)
        sleeper = peers[-1]
        asleep = [psutil.Process(sleeper.process.pid), *sleeper.children()]
        for process in asleep:
            process.suspend()
        with ahead.open("r+b") as file:
            file.write(struct.pack("d", 3600.0))
        for peer in peers[:2]:
            missed = peer.outer_step(lambda step: len(step["group"]) == 2)["outer_step"]
        for process in asleep:
            process.resume()
        for peer in peers:
            peer.outer_step(lambda step: len(step["group"]) == 3 and step["outer_step"] > missed)
    assert agree(*peers) >= 4
    assert not [peer.stderr for peer in peers if "Traceback" in peer.stderr]
