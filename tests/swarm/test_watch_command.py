"""``prime-p2p watch`` against real peers: on a terminal of 80 by 24, once, and as a stream."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from processes import COMMAND, PATIENCE, Process
from told_peers import told_peers

from prime_p2p.network.identity import Identity

LOST_WITHIN = 15.0  # seconds from a peer's sudden end until a watcher must know


def watch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, "watch", *arguments], capture_output=True, text=True, timeout=PATIENCE)


class Terminal:
    """A terminal in tmux, of 80 by 24, in which a command runs."""

    def __init__(self, folder: Path) -> None:
        self._tmux = ["tmux", "-S", str(folder / "tmux"), "-f", "/dev/null"]

    @contextmanager
    def running(self, command: list[str]) -> Iterator[None]:
        shell = f"{shlex.join(command)}; echo it ended with $?; read"
        subprocess.run([*self._tmux, "new-session", "-d", "-x", "80", "-y", "24", shell], check=True)
        try:
            yield
        finally:
            subprocess.run([*self._tmux, "kill-server"], check=True)

    @property
    def lines(self) -> list[str]:
        shown = subprocess.run([*self._tmux, "capture-pane", "-p"], capture_output=True, text=True, check=True)
        return shown.stdout.splitlines()

    def press(self, *keys: str) -> None:
        subprocess.run([*self._tmux, "send-keys", *keys], check=True)

    def until(self, wanted: Callable[[list[str]], bool], patience: float = PATIENCE) -> list[str]:
        """What is shown once it is as wanted."""
        deadline = time.monotonic() + patience
        while not wanted(lines := self.lines):
            assert time.monotonic() < deadline, "\n".join(lines)
            time.sleep(0.2)
        return lines


def row(lines: list[str], name: str) -> list[str]:
    return next((line.split() for line in lines if line.startswith(f" {name} ")), [])


def test_on_a_terminal_real_peers_are_seen_and_one_that_is_killed_is_soon_marked_lost(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    with (
        told_peers(tmp_path / "stays", "demo", 2) as (_, address),
        told_peers(tmp_path / "goes", "demo", 1, address) as (process, _),
        terminal.running([*COMMAND, "watch", "--bootstrap", address]),
    ):
        names = ["stays-0", "stays-1", "goes-0"]
        lines = terminal.until(
            lambda lines: all("40/100" in row(lines, name) for name in names) and "q quit" in lines[-1]
        )
        assert lines[0].startswith(" demo  outer step ")
        assert "3 peers" in lines[0]

        process.kill()
        lines = terminal.until(lambda lines: "lost" in row(lines, "goes-0"), LOST_WITHIN)
        assert "training" in row(lines, "stays-0")
        assert any("goes-0 is gone without a word" in line for line in lines)

        terminal.press(*"/stays-1", "Enter")
        terminal.until(lambda lines: "open peer" in lines[-1] and not row(lines, "stays-0"))
        terminal.press("Enter")
        lines = terminal.until(lambda lines: lines[0] == "stays-1")
        assert any("inner step 40 of 100" in line for line in lines)
        terminal.press("q")
        terminal.until(lambda lines: "it ended with 0" in lines)


def test_once_and_as_json_and_in_lines_it_says_what_it_sees_and_ends_when_told_to(tmp_path: Path) -> None:
    with told_peers(tmp_path / "told", "demo", 2) as (_, address):
        place = ("--bootstrap", f"{address}/run/demo/x", "--run", "demo")
        stream, lines = (Process("watch", *place, *more) for more in (["--json"], []))
        try:
            done = watch(*place, "--once")
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.splitlines()[0].split()[0] == "peer"
            assert row([f" {line}" for line in done.stdout.splitlines()], "told-1")[2] == "40/100"
            assert "run demo, outer step " in done.stdout
            assert "told-0 is there" in done.stdout

            picture = json.loads(stream.line())["picture"]
            assert {peer["name"] for peer in picture["peers"]} == {"told-0", "told-1"}
            later = json.loads(stream.line())
            assert later.keys() <= {"event", "now"}
            assert lines.line().endswith(("told-0 is there", "told-1 is there"))
            stream.signal(signal.SIGINT)
            lines.signal(signal.SIGTERM)
            assert (stream.wait(), stream.stderr) == (130, "")
            assert (lines.wait(), lines.stderr) == (143, "")
            cut = f"{shlex.join([*COMMAND, 'watch', *place, '--json'])} | head -n 1; echo ${{PIPESTATUS[0]}}"
            done = subprocess.run(["bash", "-c", cut], capture_output=True, text=True, timeout=PATIENCE)
            assert (done.stdout.splitlines()[1], done.stderr) == ("0", "")

            unknown = watch("--bootstrap", address, "--run", "another", "--once")
            assert (unknown.returncode, unknown.stdout) == (2, "")
            assert unknown.stderr == "prime-p2p: run another is not known there; known are: demo\n"
        finally:
            stream.end()
            lines.end()


def test_a_bootstrap_node_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    nobody = f"/ip4/127.0.0.1/tcp/9/p2p/{Identity.load_or_create(tmp_path / 'key').peer_id}"
    done = watch(f"{nobody}/run/demo/RtbTMuUnjx33J9aGCtg83C")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("prime-p2p: ")
