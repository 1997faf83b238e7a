"""A lab: hosts whose links have rates and delays, as on the internet.

    with Lab({"a": Link(up=200, down=200, delay=25), "b": Link(up=50, down=50, delay=25)}) as lab:
        subprocess.run(lab.command("a", ["ping", "-c", "1", lab.address("b")]), timeout=10)

in a process that was started with ``prime_p2p.lab.hosts.enclosed``.
"""

from __future__ import annotations

import dataclasses
import json
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from prime_p2p.errors import BadInput, PrimeError
from prime_p2p.lab.hosts import Hosts, addresses, ip, on_host, plug_in, set_congestion
from prime_p2p.lab.link import Link
from prime_p2p.lab.switch import READY

START_WITHIN = 20.0  # seconds for the switch to be there, on a busy machine
END_WITHIN = 5.0

# Least, first and most bytes of TCP: those of Linux, whatever this machine has.
_BUFFERS = {"tcp_rmem": "4096 131072 6291456", "tcp_wmem": "4096 16384 4194304"}
_CABLE_OPTIONS = "mtu 1500 txqueuelen 5000"  # packets that wait for the switch


class Lab:
    """Hosts with one link each. Rates alone are kept by the kernel, delays and rates by a switch of our own.

    There is one lab at a time in a process's namespaces. ``enter(name)`` and ``on_host(name, command)`` from
    ``prime_p2p.lab.hosts`` lead onto its hosts.
    """

    def __init__(self, links: Mapping[str, Link], congestion: str = "cubic") -> None:
        """Build it. ``congestion`` is the congestion control of TCP, by Linux's name for it; cubic is Linux's choice.

        Raises:
            BadInput: A name or the congestion control cannot be used, or delays are wanted and there is no leave to
                have TUN devices.
            PrimeError: It could not be built; one line says why.
        """
        self._network: Hosts | _FarHosts
        if any(link.delay for link in links.values()):
            self._network = _FarHosts(links)
        else:
            self._network = Hosts([list(links)])
        try:
            for name, link in links.items():
                _set_buffers(name)
                set_congestion(name, self._network.address(name), congestion)
                if isinstance(self._network, Hosts):
                    self._network.shape(name, link)
        except BaseException:
            self._network.close()
            raise

    def address(self, name: str) -> str:
        """The IP address of a host."""
        return self._network.address(name)

    def command(self, name: str, command: Sequence[str]) -> list[str]:
        """The command line that runs ``command`` on a host."""
        return on_host(name, command)

    def close(self) -> None:
        """Remove it; processes that are still on a host lose their cable. May be called again.

        Raises:
            PrimeError: The switch has ended before, so there was no network for some time.
        """
        self._network.close()

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _FarHosts:
    """Hosts with a cable to the switch of ``prime_p2p.lab.switch``, which this starts and ends."""

    def __init__(self, links: Mapping[str, Link]) -> None:
        self._addresses = addresses(list(links))
        self._made: list[str] = []
        self._switch: subprocess.Popen[str] | None = None
        try:
            for name in links:
                ip([f"netns add {name}"])
                self._made.append(name)
            self._switch = _start_switch(links, self._addresses)
            for name, address in self._addresses.items():
                plug_in(name, address, _CABLE_OPTIONS)
        except BaseException:
            self.close()
            raise

    def address(self, name: str) -> str:
        return self._addresses[name]

    def close(self) -> None:
        switch, self._switch = self._switch, None
        ended = None if switch is None else switch.poll()
        if switch is not None:
            _end(switch)  # and with it the cables
        made, self._made = self._made, []
        ip([f"netns del {name}" for name in made], force=True)
        if ended is not None:
            raise PrimeError(f"the lab's switch ended unexpectedly, with exit code {ended}")


def _start_switch(links: Mapping[str, Link], addresses: Mapping[str, str]) -> subprocess.Popen[str]:
    switch = subprocess.Popen(
        [sys.executable, "-m", "prime_p2p.lab.switch"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl+C reaches the others, who may need the network to leave in good order
    )
    try:
        assert switch.stdin is not None
        assert switch.stdout is not None
        hosts = [
            {"name": name, "address": addresses[name], "link": dataclasses.astuple(link)}
            for name, link in links.items()
        ]
        with suppress(BrokenPipeError):  # it has ended: its output, which is nothing, tells us
            switch.stdin.write(json.dumps(hosts) + "\n")
            switch.stdin.flush()
        if not select.select([switch.stdout], [], [], START_WITHIN)[0]:
            raise PrimeError(f"the lab's switch was not there within {START_WITHIN:g} s")
        line = switch.stdout.readline().strip()
        if line != READY:
            raise BadInput(line) if line else PrimeError("the lab's switch could not be started")
    except BaseException:
        _end(switch)
        raise
    return switch


def _end(switch: subprocess.Popen[str]) -> None:
    try:
        switch.communicate(timeout=END_WITHIN)  # closes its standard input, which tells it to end
    except subprocess.TimeoutExpired:
        switch.kill()
        switch.communicate()


def _set_buffers(name: str) -> None:
    """Let TCP have as much under way as on most machines."""
    lines = [f'echo "{sizes}" > /proc/sys/net/ipv4/{setting}' for setting, sizes in _BUFFERS.items()]
    command = on_host(name, ["sh", "-c", " && ".join(lines)])
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=END_WITHIN)
    if done.returncode != 0:
        raise PrimeError(f"cannot set the buffers of TCP on host {name}: {done.stderr.strip()}")
