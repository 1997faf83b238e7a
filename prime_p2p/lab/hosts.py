"""Machines on one machine: each host is a network namespace with a cable to one of two switches.

Everything lives inside namespaces of the caller's own, which ``enclosed`` makes (as root, or as any user where the
kernel lets users have namespaces). They end with the process that has them, and with them every host, cable and process
in there: nothing is left on the machine, however it ends.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from prime_p2p.errors import BadInput, PrimeError
from prime_p2p.lab.link import BURST, QUEUE, Link

CABLE = "eth0"  # the network device of every host
CLONE_NEWNET = 0x40000000
MOST_HOSTS = 254
PREFIX = "10.77.0"

_COMMAND_DEADLINE = 10.0  # seconds
_LEAST_BURST = 16 * 1024  # bytes: a few packets, so that a slow link keeps its rate
_MARK = Path("/run/prime-p2p-lab")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}
_ROOMS = f'mount -t tmpfs none /run && mkdir /run/netns {_MARK} && exec "$@"'


def enclosed(command: Sequence[str]) -> list[str]:
    """The command line that runs ``command`` with a network, processes and mounts of its own, until the caller ends.

    It is killed when the thread that starts it ends, so start it from one that stays.

    Raises:
        BadInput: This machine has not what that takes.
    """
    missing = sorted({package for tool, package in _PACKAGES.items() if _path(tool) is None})
    if missing:
        raise BadInput(f"a lab needs Linux with {' and '.join(missing)} (Debian: apt-get install {' '.join(missing)})")
    tried = subprocess.run(
        _enclosed(["true"]), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_COMMAND_DEADLINE
    )
    if tried.returncode != 0:
        raise BadInput(
            "a lab needs root, or a system that lets users have namespaces (sysctl user.max_user_namespaces; in a "
            f"container, --privileged): {_last_line(tried.stderr)}"
        )
    return _enclosed(command)


def _enclosed(command: Sequence[str]) -> list[str]:
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    own = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "unshare",
        *user,
        "--mount",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]
    return [*own, "sh", "-c", _ROOMS, "sh", *command]


class Hosts:
    """The hosts of ``sides``: one switch each, and a cable between the two."""

    def __init__(self, sides: Sequence[Sequence[str]], prefix: str = PREFIX) -> None:
        """Make them. Raises PrimeError, and leaves nothing then."""
        self._addresses = addresses([name for names in sides for name in names], prefix)
        self._ports: dict[str, str] = {}
        self._made: list[str] = []
        try:
            ip(["link set lo up"])
            self._make("link", "join0", "type veth peer name join1")
            for side, names in enumerate(sides):
                switch = f"switch{side}"
                self._make("link", switch, "type bridge")
                ip([f"link set {switch} up", f"link set join{side} master {switch}", f"link set join{side} up"])
                for name in names:
                    self._add(name, switch)
        except BaseException:
            self.close()
            raise

    def _add(self, name: str, switch: str) -> None:
        port = self._ports[name] = f"port{len(self._ports) + 1}"
        self._make("netns", name)
        self._make("link", port, f"type veth peer name {CABLE} netns {name}")
        ip([f"link set {port} master {switch}", f"link set {port} up"])
        plug_in(name, self._addresses[name])

    def _make(self, kind: str, name: str, options: str = "") -> None:
        ip([f"{kind} add {name} {options}"])
        self._made.append(f"{kind} del {name}")

    def address(self, name: str) -> str:
        """The IP address of a host."""
        return self._addresses[name]

    def shape(self, name: str, link: Link) -> None:
        """Give a host the rates of this link, where it has any; a delay takes the switch of a ``Lab``."""
        if link.up:
            _tc(f"qdisc replace dev {CABLE} root {_bucket(link.up)}", inside=name)
        if link.down:
            _tc(f"qdisc replace dev {self._ports[name]} root {_bucket(link.down)}")

    def cut(self, name: str) -> None:
        """Pull the cable of a host: what it sends and what is sent to it is lost without a word."""
        ip([f"link set {self._ports[name]} down"])

    def heal(self, name: str) -> None:
        """Plug it in again."""
        ip([f"link set {self._ports[name]} up"])

    def split(self) -> None:
        """Pull the cable between the switches."""
        ip(["link set join0 down"])

    def join(self) -> None:
        """Plug it in again."""
        ip(["link set join0 up"])

    def close(self) -> None:
        """Remove all of it; processes that are still on a host lose their cable. May be called again."""
        made, self._made = self._made, []
        ip(reversed(made), force=True)


def addresses(names: Sequence[str], prefix: str = PREFIX) -> dict[str, str]:
    """An address for each of these hosts.

    Raises:
        BadInput: Not every one of them can be a host's name, or there are too many.
        RuntimeError: This process is not enclosed.
    """
    if not _MARK.is_dir():
        raise RuntimeError("hosts can be made inside of `enclosed` only, where nothing of the machine's own is")
    wrong = [name for name in names if not _NAME.fullmatch(name)]
    if wrong:
        raise BadInput(f"a host's name has up to 64 letters, digits, '-', '_' and '.', not {wrong[0]!r}")
    if len(set(names)) < len(names):
        raise BadInput("two hosts have the same name")
    if len(names) > MOST_HOSTS:
        raise BadInput(f"a lab has up to {MOST_HOSTS} hosts, not {len(names)}")
    return {name: f"{prefix}.{number}" for number, name in enumerate(names, start=1)}


def plug_in(name: str, address: str, options: str = "") -> None:
    """Set up the devices of a host; ``options`` are those of ``ip link set`` for its cable."""
    ip(["link set lo up", f"addr add {address}/24 dev {CABLE}", f"link set {CABLE} {options} up"], inside=name)


def set_congestion(name: str, address: str, control: str) -> None:
    """Have the TCP connections of a host use this congestion control. Raises BadInput where the kernel has it not."""
    known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    if control not in known:
        raise BadInput(f"this machine has no congestion control {control!r}; it has {', '.join(known)}")
    route = f"route change {PREFIX}.0/24 dev {CABLE} proto kernel scope link src {address} congctl {control}"
    ip([route], inside=name)


def enter(name: str) -> None:
    """Move the calling thread, and what it starts from now on, to a host."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        if libc.setns(descriptor, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter host {name}")
    finally:
        os.close(descriptor)


def on_host(name: str, command: Sequence[str]) -> list[str]:
    """The command line that runs ``command`` on a host."""
    return ["nsenter", f"--net=/run/netns/{name}", *command]


def ip(lines: Iterable[str], inside: str | None = None, force: bool = False) -> None:
    """Run ``ip`` with these lines, on a host or beside them; with ``force``, whatever comes of it.

    Raises:
        PrimeError: It failed, with what it said.
    """
    command = ["ip", *([] if inside is None else ["-n", inside]), *(["-force"] if force else []), "-batch", "-"]
    run(command, "\n".join(lines), check=not force)


def _tc(line: str, inside: str | None = None) -> None:
    run([_path("tc") or "tc", *([] if inside is None else ["-n", inside]), "-batch", "-"], line)


def _bucket(rate: float) -> str:
    """The queueing discipline that sends ``rate`` Mbit/s."""
    burst = max(_LEAST_BURST, int(rate * 1e6 / 8 * BURST))
    return f"tbf rate {rate * 1e6:.0f}bit burst {burst} latency {QUEUE * 1e3:.0f}ms"


def run(command: Sequence[str], text: str, check: bool = True) -> None:
    """Run a command with this input. Raises PrimeError where it fails, with what it said, unless ``check`` is False."""
    ended = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_COMMAND_DEADLINE)
    if check and ended.returncode != 0:
        raise PrimeError(f"{Path(command[0]).name} failed: {_last_line(ended.stderr)}")


def _path(tool: str) -> str | None:
    """Where a tool is; those of the system are not on every user's path."""
    return shutil.which(tool, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]))


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1].strip()
