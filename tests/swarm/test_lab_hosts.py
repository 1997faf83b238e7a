"""Hosts on this machine: they reach each other, unless a cable is pulled, and leave nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from prime_p2p.errors import BadInput
from prime_p2p.lab.hosts import Hosts, enclosed

LABORATORY = """
import subprocess, sys
from prime_p2p.lab.hosts import Hosts

hosts = Hosts([["left", "also-left"], ["right"]])

def reaches(one, other):
    script = '''
import socket, sys
server = socket.create_server((sys.argv[1], 9000))
print("up", flush=True)
server.accept()
'''
    address = hosts.address(other)
    command = ["ip", "netns", "exec", other, sys.executable, "-c", script, address]
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    script = "import socket, sys; socket.create_connection((sys.argv[1], 9000), timeout=3)"
    try:
        assert server.stdout.readline() == b"up\\n"
        command = ["ip", "netns", "exec", one, sys.executable, "-c", script, address]
        return subprocess.call(command, stderr=subprocess.DEVNULL) == 0
    finally:
        server.kill()
        server.wait()
"""


def run(script: str) -> None:
    command = [sys.executable, "-c", LABORATORY + script]
    subprocess.run(enclosed(command), check=True, timeout=60)


def test_hosts_reach_each_other_on_both_sides() -> None:
    run('assert reaches("left", "also-left") and reaches("left", "right") and reaches("right", "left")')


def test_a_host_is_cut_off_and_comes_back() -> None:
    run(
        'hosts.cut("left"); assert not reaches("left", "also-left") and reaches("right", "also-left"); '
        'hosts.heal("left"); assert reaches("left", "also-left")'
    )


def test_two_sides_are_apart_and_meet_again() -> None:
    run(
        'hosts.split(); assert not reaches("left", "right") and reaches("left", "also-left"); '
        'hosts.join(); assert reaches("left", "right")'
    )


def test_whoever_is_in_there_ends_with_the_caller_however_sudden_its_end() -> None:
    inside = 'import subprocess, sys; print("up", flush=True); subprocess.run(["sleep", "98765"])'
    script = "import subprocess, sys; from prime_p2p.lab.hosts import enclosed; "
    script += f"subprocess.run(enclosed([sys.executable, '-c', {inside!r}]))"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == b"up\n"
        descendants = psutil.Process(caller.pid).children(recursive=True)
        os.kill(caller.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in descendants):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_who_may_not_have_namespaces_is_told_what_to_do() -> None:
    script = "from prime_p2p.lab.hosts import enclosed; enclosed(['true'])"
    command = enclosed(["setpriv", "--bounding-set=-sys_admin", sys.executable, "-c", script])
    said = subprocess.run(command, capture_output=True, text=True, timeout=60).stderr.splitlines()[-1]
    assert said.startswith("prime_p2p.errors.BadInput: a lab needs root, or a system that lets users have namespaces")
    assert "--privileged" in said


def test_a_tool_that_is_not_installed_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BadInput, match=r"apt-get install .*util-linux"):
        enclosed(["true"])


def test_nothing_is_made_among_the_networks_of_the_machine() -> None:
    with pytest.raises(RuntimeError, match="enclosed"):
        Hosts([["left"], ["right"]])
