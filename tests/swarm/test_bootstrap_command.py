"""The bootstrap command as a process, as a service manager or a parent program starts it."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

import prime_p2p
from prime_p2p.status import look

ROOT = Path(prime_p2p.__file__).parents[1]
DEADLINE = 60.0  # seconds for a process to end


class Bootstrap:
    """A bootstrap process that has said its address, and the processes it started."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "prime_p2p.cli", "bootstrap", "--port", "0", "--host", "127.0.0.1", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        self.children = psutil.Process(self.process.pid).children(recursive=True)

    def end(self) -> tuple[int, str, str]:
        """Wait for the end: exit code, the rest of standard output, standard error."""
        self.process.wait(DEADLINE)  # before anything closes its standard input, which is a reason to end
        out, err = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, out, err


@pytest.fixture
def identity(tmp_path: Path) -> str:
    return str(tmp_path / "identity.key")


@pytest.fixture
def bootstrap(identity: str) -> Iterator[Bootstrap]:
    made = Bootstrap("--identity", identity, "--stop-with-parent")
    yield made
    if made.process.poll() is None:
        os.killpg(made.process.pid, signal.SIGKILL)
        made.end()


def test_prometheus_reads_how_many_peers_are_connected(identity: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = Bootstrap("--identity", identity, "--metrics-port", str(port), "--stop-with-parent")
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE) as answer:
            families = {one.name: one for one in text_string_to_metric_families(answer.read().decode())}
        assert families["prime_p2p_connected_peers"].samples[0].value == 0
        assert families["process_resident_memory_bytes"].samples[0].value > 0
        made.process.send_signal(signal.SIGTERM)
        assert made.end()[0] == 0
    finally:
        if made.process.poll() is None:
            os.killpg(made.process.pid, signal.SIGKILL)
            made.end()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_says_one_address_and_ends_quietly_on_a_signal(number: signal.Signals, bootstrap: Bootstrap) -> None:
    assert bootstrap.address.startswith("/ip4/127.0.0.1/tcp/")
    assert look([bootstrap.address], None) == []
    bootstrap.process.send_signal(number)
    assert bootstrap.end() == (0, "", "")
    assert psutil.wait_procs(bootstrap.children, timeout=DEADLINE)[1] == []


def test_it_ends_with_the_program_that_started_it(bootstrap: Bootstrap) -> None:
    assert bootstrap.process.stdin is not None
    bootstrap.process.stdin.close()
    bootstrap.process.stdin = None
    assert bootstrap.end() == (0, "", "")
    assert psutil.wait_procs(bootstrap.children, timeout=DEADLINE)[1] == []


def test_it_keeps_its_peer_id(identity: str, bootstrap: Bootstrap) -> None:
    bootstrap.process.terminate()
    bootstrap.end()
    again = Bootstrap("--identity", identity)
    again.process.terminate()
    again.end()
    assert again.address.rpartition("/")[2] == bootstrap.address.rpartition("/")[2]


def test_it_serves_at_the_same_address_after_its_daemon_has_died(bootstrap: Bootstrap) -> None:
    (daemon,) = [child for child in bootstrap.children if child.name() == "p2pd"]
    daemon.kill()
    assert bootstrap.process.stderr is not None
    assert "daemon was killed by signal 9; starting another one" in bootstrap.process.stderr.readline()
    assert "daemon is back after" in bootstrap.process.stderr.readline()
    assert look([bootstrap.address], None) == []
    children = psutil.Process(bootstrap.process.pid).children(recursive=True)
    bootstrap.process.terminate()
    assert bootstrap.end() == (0, "", "")
    assert psutil.wait_procs(children, timeout=DEADLINE)[1] == []


def test_a_port_that_is_taken_is_refused_in_one_line(bootstrap: Bootstrap, tmp_path: Path) -> None:
    port = bootstrap.address.split("/")[4]
    command = f"bootstrap --host 127.0.0.1 --port {port} --identity {tmp_path / 'other.key'}".split()
    result = subprocess.run(
        [sys.executable, "-m", "prime_p2p.cli", *command], capture_output=True, text=True, cwd=ROOT, timeout=DEADLINE
    )
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
