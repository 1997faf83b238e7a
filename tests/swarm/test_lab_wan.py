"""The lab's links, measured: each test runs one of the functions below inside of namespaces of its own."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from prime_p2p.errors import BadInput
from prime_p2p.lab.hosts import enclosed, enter
from prime_p2p.lab.link import Link
from prime_p2p.lab.wan import Lab

TUN = "/dev/net/tun"
needs_tun = pytest.mark.skipif(not os.access(TUN, os.R_OK | os.W_OK), reason=f"{TUN} cannot be opened")


def at(host: str, work: Callable[..., Any], *arguments: Any) -> Any:
    """What ``work`` returns on a host; a socket that is made there stays there."""

    def there() -> Any:
        enter(host)
        return work(*arguments)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(there).result(10)


def connection(lab: Lab, source: str, target: str) -> tuple[socket.socket, socket.socket]:
    """A TCP connection's two ends."""
    with at(target, socket.create_server, (lab.address(target), 0)) as server:
        out = at(source, socket.create_connection, server.getsockname(), 5)
        server.settimeout(5)
        end = server.accept()[0]
    for one in (out, end):
        one.settimeout(10)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
    return out, end


def transfer(lab: Lab, source: str, target: str, data: bytes) -> tuple[float, bytes]:
    """How long it takes, in seconds, and the hash of what arrived."""
    out, end = connection(lab, source, target)
    arrived = hashlib.sha256()

    def send() -> None:
        out.sendall(data)
        out.shutdown(socket.SHUT_WR)

    with out, end, ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        sending = pool.submit(send)
        while piece := end.recv(1 << 20):
            arrived.update(piece)
        sending.result(10)
        return time.monotonic() - began, arrived.digest()


def round_trip(lab: Lab, one: str, other: str) -> float:
    """The shortest of a few, in ms."""
    near, far = connection(lab, one, other)
    times = []
    with near, far:
        for _ in range(3):
            began = time.monotonic()
            near.sendall(b"?")
            far.sendall(far.recv(1))
            near.recv(1)
            times.append(1e3 * (time.monotonic() - began))
    return min(times)


def rates(delay: float) -> None:
    """Up, down, and the slower of two links; 0.4 to 0.5 s each at the full rate."""
    links = {"a": Link(50, 20, delay), "b": Link(0, 0, delay), "c": Link(100, 25, delay)}
    with Lab(links) as lab:
        assert 0.4 < transfer(lab, "a", "b", bytes(3_000_000))[0] < 2
        assert 0.4 < transfer(lab, "b", "a", bytes(1_200_000))[0] < 2
        assert 0.4 < transfer(lab, "a", "c", bytes(1_500_000))[0] < 2
        assert 0.4 < transfer(lab, "c", "a", bytes(1_200_000))[0] < 2
        assert 0.02 < transfer(lab, "c", "b", bytes(1_500_000))[0] < 1


def near_rates() -> None:
    rates(0)


def far_rates() -> None:
    rates(2)


def round_trips() -> None:
    with Lab({"a": Link(delay=10), "b": Link(delay=30), "c": Link()}) as lab:
        assert 80 <= round_trip(lab, "a", "b") < 160
        assert 80 <= round_trip(lab, "b", "a") < 160
        assert 20 <= round_trip(lab, "c", "a") < 60
        assert 60 <= round_trip(lab, "c", "b") < 120


def bytes_both_ways() -> None:
    dice = random.Random(1)
    there, back = dice.randbytes(30_000_001), dice.randbytes(20_000_003)
    with Lab({"a": Link(delay=1), "b": Link(500, 500, 1)}) as lab, ThreadPoolExecutor(2) as pool:
        one = pool.submit(transfer, lab, "a", "b", there)
        other = pool.submit(transfer, lab, "b", "a", back)
        assert one.result(20)[1] == hashlib.sha256(there).digest()
        assert other.result(20)[1] == hashlib.sha256(back).digest()


def closing() -> None:
    def left() -> tuple[str, str, int, list[psutil.Process]]:
        devices = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
        names = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
        return devices, names, len(os.listdir("/proc/self/fd")), psutil.Process().children()

    before = left()
    for delay in (0, 5, 0):
        with Lab({"a": Link(10, 10, delay), "b": Link(0, 0, delay)}) as lab:
            assert round_trip(lab, "a", "b") < 1000
            assert left() != before
            subprocess.run(lab.command("a", ["true"]), check=True, timeout=10)
        lab.close()
        after = left()
        assert after[0].count("\n") == 1  # the loopback device, which is up now
        assert after[1:] == before[1:]


def owner_killed() -> None:
    script = (
        "import time; from prime_p2p.lab.wan import Lab, Link; lab = Lab({'a': Link(delay=5)}); print(flush=True); "
    )
    with subprocess.Popen([sys.executable, "-c", script + "time.sleep(60)"], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"\n"
        (switch,) = psutil.Process(owner.pid).children()
        owner.kill()
    deadline = time.monotonic() + 10
    while os.waitpid(switch.pid, os.WNOHANG) == (0, 0):  # orphans come to us, the first process in here
        assert time.monotonic() < deadline
        time.sleep(0.02)


def no_tun() -> None:
    if os.path.exists(TUN):
        subprocess.run(["mount", "-t", "tmpfs", "none", os.path.dirname(TUN)], check=True, timeout=10)
    with pytest.raises(BadInput, match=f"a lab with delays needs {TUN}: modprobe tun"):
        Lab({"a": Link(delay=1), "b": Link()})
    with Lab({"a": Link(), "b": Link()}) as lab:
        assert round_trip(lab, "a", "b") < 1000


def impossible_names() -> None:
    with pytest.raises(BadInput, match="a host's name"):
        Lab({"a/b": Link()})
    with pytest.raises(BadInput, match="up to 254 hosts, not 300"):
        Lab({f"host{number}": Link(delay=1) for number in range(300)})


def waiting() -> None:
    with Lab({"a": Link(delay=5), "b": Link()}):
        print("up", flush=True)
        time.sleep(60)


def run(what: Callable[[], None]) -> None:
    """Run one of the functions above, enclosed."""
    ended = subprocess.run(enclosed([sys.executable, __file__, what.__name__]), stderr=subprocess.PIPE, timeout=60)
    assert ended.returncode == 0, ended.stderr.decode()


def test_each_link_has_its_own_rate_up_and_down() -> None:
    run(near_rates)


@needs_tun
def test_it_has_them_with_delays_too() -> None:
    run(far_rates)


@needs_tun
def test_a_round_trip_takes_the_delays_of_both_links_twice() -> None:
    run(round_trips)


@needs_tun
def test_the_switch_carries_the_bytes_it_was_given_both_ways_at_once() -> None:
    run(bytes_both_ways)


@needs_tun
def test_nothing_is_left_of_a_lab_that_was_closed_and_the_next_one_can_be_built() -> None:
    run(closing)


@needs_tun
def test_the_switch_ends_with_its_owner() -> None:
    run(owner_killed)


def test_who_cannot_have_delays_is_told_why_and_can_have_the_rest() -> None:
    run(no_tun)


def test_hosts_that_cannot_be_are_refused() -> None:
    run(impossible_names)


@needs_tun
def test_a_lab_ends_with_the_process_that_enclosed_it_however_sudden_its_end() -> None:
    script = "import subprocess, sys; from prime_p2p.lab.hosts import enclosed; "
    script += f"subprocess.run(enclosed([sys.executable, {str(Path(__file__))!r}, 'waiting']))"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == b"up\n"
        descendants = psutil.Process(caller.pid).children(recursive=True)
        assert len(descendants) >= 3  # unshare, the lab, its switch
        os.kill(caller.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(descendants, timeout=10)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


if __name__ == "__main__":
    globals()[sys.argv[1]]()
