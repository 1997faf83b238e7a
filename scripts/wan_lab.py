r"""Run a command on several hosts of a network that is as slow and as wide as the internet, all on this machine.

python scripts/wan_lab.py --host NAME:UP:DOWN:DELAY [--host ...] -- COMMAND ...

Each host has a network of its own, and its link to the others has a rate up and down (Mbit/s, 0 for none) and a delay
(ms, which every packet in or out takes longer: between two hosts with 25 a round trip takes 100). What is left out is
0. Once an option has a delay, rates are kept by a process that carries every packet, and otherwise by the kernel.
The command runs once on every host, all at the same time, with LAB_HOST (the host's name), LAB_ADDRESS (its IP address)
and LAB_FIRST_ADDRESS (that of the first host) in its environment. The exit code is the worst of theirs. Ctrl+C and
SIGTERM ask them to stop, and end what has not after 12 s. Nothing is left on the machine.

How fast one TCP stream is:

  python scripts/wan_lab.py --host a:200:200:25 --host b:50:50:25 -- python3 -c '
  import os, socket, time
  server = (os.environ["LAB_FIRST_ADDRESS"], 5000)
  if os.environ["LAB_HOST"] == "a":
      stream, began, received = socket.create_server(server).accept()[0], time.monotonic(), 0
      while data := stream.recv(1 << 20):
          received += len(data)
      print(f"{received * 8e-6 / (time.monotonic() - began):.0f} Mbit/s")
  else:
      time.sleep(1)
      socket.create_connection(server).sendall(bytes(50_000_000))'

A swarm of two peers, until Ctrl+C:

  python scripts/wan_lab.py --host node --host a:200:50:25 --host b:50:50:25 -- sh -c '
  mkdir -p runs/lab
  if [ $LAB_HOST = node ]; then
      exec prime-p2p bootstrap --host $LAB_ADDRESS --identity runs/lab/node.key > runs/lab/address
  fi
  sleep 10
  exec prime-p2p peer --recipe peers/tiny.toml --threads 1 --dir runs/lab/$LAB_HOST \
      --host $LAB_ADDRESS --bootstrap $(cat runs/lab/address)'
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from prime_p2p.errors import BadInput, PrimeError
from prime_p2p.lab.hosts import enclosed
from prime_p2p.lab.link import Link
from prime_p2p.lab.wan import Lab
from prime_p2p.lifetime import STOP_PATIENCE, StopSignals, noting_stop_signals, stop_with_parent

LOOK_EVERY = 0.05  # seconds
CLEAN_UP = 10.0  # seconds for the lab to be gone after its commands


def host(text: str) -> tuple[str, Link]:
    """A host as an option names it: NAME:UP:DOWN:DELAY. Raises BadInput."""
    name, *numbers = text.split(":")
    try:
        return name, Link(*(float(number or 0) for number in numbers))
    except (TypeError, ValueError):
        raise BadInput(f"--host takes NAME:UP:DOWN:DELAY, as in a:200:50:25, not {text!r}") from None


def hosts(texts: Sequence[str]) -> dict[str, Link]:
    """All of them, in order. Raises BadInput."""
    links = dict(map(host, texts))
    if len(links) < len(texts):
        raise BadInput("two hosts have the same name")
    return links


def run_on_all(links: Mapping[str, Link], congestion: str, command: Sequence[str], stop: threading.Event) -> int:
    """Build the lab, in an enclosed process, and run the command on every host; the worst exit code."""
    running: list[subprocess.Popen[bytes]] = []
    with Lab(links, congestion) as lab:
        first = lab.address(next(iter(links)))
        try:
            for name in links:
                own = {"LAB_HOST": name, "LAB_ADDRESS": lab.address(name), "LAB_FIRST_ADDRESS": first}
                on_host = lab.command(name, command)
                running.append(subprocess.Popen(on_host, stdin=subprocess.DEVNULL, env={**os.environ, **own}))
            while any(process.poll() is None for process in running) and not stop.wait(LOOK_EVERY):
                pass
        finally:
            codes = end_all(running)
    return max(codes)


def end_all(running: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Ask those who still run to stop, and kill them when they do not; the exit codes of all, as a shell has them."""
    deadline = time.monotonic() + STOP_PATIENCE
    for process in running:
        if process.poll() is None:
            process.terminate()
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return [process.returncode if process.returncode >= 0 else 128 - process.returncode for process in running]


def inside(links: Mapping[str, Link], congestion: str, command: Sequence[str]) -> int:
    """The enclosed process, which works until the one that started it closes its standard input."""
    stop = threading.Event()
    stop_with_parent(stop.set, patience=STOP_PATIENCE + CLEAN_UP)
    return run_on_all(links, congestion, command, stop)


def outside(received: StopSignals) -> int:
    """The process that was called: it starts the enclosed one, and passes on that it is to stop."""
    again = enclosed([sys.executable, *sys.argv[:1], "--inside", *sys.argv[1:]])
    # A session of its own: Ctrl+C on a terminal is for us, and the commands are asked to stop once.
    with subprocess.Popen(again, stdin=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdin is not None
        try:
            while process.poll() is None and received.first is None:
                time.sleep(LOOK_EVERY)
            process.stdin.close()
            code = process.wait(STOP_PATIENCE + 2 * CLEAN_UP)
        finally:
            process.kill()  # with it goes all that is enclosed
    return code if received.first is None else 128 + received.first


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, usage=argparse.SUPPRESS, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", action="append", default=[], metavar="NAME:UP:DOWN:DELAY", help="may be repeated")
    parser.add_argument("--congestion", default="cubic", metavar="NAME", help="TCP's congestion control [cubic]")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:end])
    command = sys.argv[end + 1 :]
    try:
        if not hosts(options.host) or not command:
            raise BadInput("at least one --host and a command after `--` are needed: see --help")
        if options.inside:
            return inside(hosts(options.host), options.congestion, command)
        with noting_stop_signals() as received:
            return outside(received)
    except PrimeError as error:
        print(f"wan_lab: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
