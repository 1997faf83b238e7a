"""Peers at home, behind routers with NAT, and others with an address of their own. This file is also what runs inside.

Two homes have done nothing; in the third one the router forwards the port.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop
from node_process import DATA, ECHO, Data, echo

from prime_p2p.lab.hosts import enclosed, on_host
from prime_p2p.lab.nat import Internet
from prime_p2p.network import dial_back, reachability
from prime_p2p.network.daemon_config import RelayLimits
from prime_p2p.network.dial_back import DialBack
from prime_p2p.network.node import Node, NodeConfig
from prime_p2p.network.reachability import Reachability
from prime_p2p.network.streams import Stream, StreamError

PORT = 31330
PUBLIC = ["door", "pub"]
HOMES = ["ann", "bob", "cat"]
PAYLOAD = bytes(range(256)) * 4096  # more than what any libp2p daemon relays
PATIENCE = 30.0
WITHIN = 60.0
ADVICE = (
    "TCP port 31330 of this machine cannot be reached from outside (no answer within 1 s): forward it in your router"
)


async def peer(identity: str, sign: str, *bootstrap: str) -> None:
    """Say where we are once one of our addresses has `sign` in it, and talk to each peer named on standard input."""
    limits = RelayLimits() if not bootstrap else None
    node = await Node.create(NodeConfig(Path(identity), bootstrap, ("0.0.0.0",), PORT, relay=limits))
    try:
        await node.serve(ECHO, DATA, echo)
        asking = DialBack(node)
        await asking.serve()
        told: asyncio.Queue[list[str]] = asyncio.Queue()
        Reachability(node, asking, told.put_nowait).start()
        addresses: list[str] = []
        deadline = time.monotonic() + PATIENCE
        while not any(sign in address for address in addresses):
            addresses = await asyncio.wait_for(told.get(), deadline - time.monotonic())
        print(json.dumps([node.peer_id, addresses]), flush=True)
        while others := (await asyncio.to_thread(sys.stdin.readline)).split():
            await asyncio.gather(*(talk(node, other) for other in others))
            print("heard", flush=True)
    finally:
        await node.close()


async def talk(node: Node, other: str) -> None:
    stream = await opened(node, other)
    await stream.send(Data(), PAYLOAD, stall=PATIENCE)
    await stream.receive(stall=PATIENCE)
    assert await stream.receive_payload(stall=PATIENCE) == PAYLOAD
    stream.close()


async def opened(node: Node, other: str) -> Stream:
    """A stream to another peer, as soon as it is there."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return await node.open(other, ECHO, DATA, timeout=PATIENCE)
        except StreamError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)


def start(folder: Path, name: str, sign: str, *bootstrap: str) -> subprocess.Popen[str]:
    command = on_host(name, [sys.executable, __file__, "peer", str(folder / name), sign, *bootstrap])
    with (folder / f"{name}.log").open("w") as errors:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line
    return line


def tell(process: subprocess.Popen[str], *others: str) -> None:
    assert process.stdin is not None
    process.stdin.write(" ".join(others) + "\n")
    process.stdin.flush()


def meet(folder: Path) -> None:
    """Have each of them talk to each other one, and those behind NAT again after their relay was gone for a while."""
    with Internet(PUBLIC, HOMES) as internet:
        internet.forward("cat", PORT)
        public = f"/ip4/{internet.address('door')}/tcp/{PORT}"
        signs = {
            "pub": f"/ip4/{internet.address('pub')}/tcp/{PORT}",
            "ann": f"{public}/p2p/",
            "bob": "/p2p-circuit/",
            "cat": f"/ip4/{internet.address('cat')}/tcp/{PORT}/p2p/",
        }
        processes = {"door": start(folder, "door", public)}
        ids = {"door": json.loads(line_of(processes["door"]))[0]}
        processes |= {name: start(folder, name, signs[name], f"{public}/p2p/{ids['door']}") for name in signs}
        addresses = {}
        for name in signs:
            ids[name], addresses[name] = json.loads(line_of(processes[name]))
        assert addresses["ann"][0] == f"{public}/p2p/{ids['door']}/p2p-circuit/p2p/{ids['ann']}"
        for name in signs:
            tell(processes[name], *(ids[other] for other in ids if other != name))
        assert [line_of(processes[name]) for name in signs] == ["heard"] * len(signs)

        processes["door"].kill()  # and with it all that is relayed
        processes["door"].communicate(timeout=WITHIN)
        processes["door"] = start(folder, "door", public)
        assert json.loads(line_of(processes["door"]))[0] == ids["door"]
        tell(processes["ann"], ids["bob"])
        assert line_of(processes["ann"]) == "heard"

        for name in (*signs, "door"):
            processes[name].communicate("\n", timeout=WITHIN)
            assert processes[name].returncode == 0
    for name in HOMES:
        assert ((folder / f"{name}.log").read_text().count(ADVICE)) == (name != "cat")


def test_peers_behind_nat_meet_each_other_and_all_others_and_are_told_what_to_do() -> None:
    command = enclosed([sys.executable, __file__, "meet"])
    ended = subprocess.run(command, stderr=subprocess.PIPE, timeout=110)
    assert ended.returncode == 0, ended.stderr.decode()


if __name__ == "__main__":
    if sys.argv[1] == "peer":
        logging.basicConfig(level=logging.WARNING)
        dial_back._TRY = 1.0
        reachability.LOOK_EVERY = 2.0
        uvloop.run(peer(*sys.argv[2:]))
    else:
        with tempfile.TemporaryDirectory() as name:
            try:
                meet(Path(name))
            finally:
                for log in sorted(Path(name).glob("*.log")):
                    print(log.name, log.read_text(), sep="\n", file=sys.stderr)
