"""Peers that are far from each other, on hosts of a lab. This file is also what runs inside, and a peer there."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import uvloop
from node_process import DATA, ECHO, Data, echo

from prime_p2p.lab.hosts import enclosed
from prime_p2p.lab.link import Link
from prime_p2p.lab.wan import Lab
from prime_p2p.network.node import Node, NodeConfig

TUN = "/dev/net/tun"
TIMES = 2
PEERS = ["a", "b", "c", "d"]
WITHIN = 60


async def peer(identity: str, host: str, *bootstrap: str) -> None:
    """Say where we are, and talk to each peer that is named on standard input."""
    node = await Node.create(NodeConfig(Path(identity), bootstrap, hosts=(host,)))
    try:
        await node.serve(ECHO, DATA, echo)
        print((await node.addresses())[0], flush=True)
        others = (await asyncio.to_thread(sys.stdin.readline)).split()
        await asyncio.gather(*(talk(node, other) for other in others))
        print("heard", flush=True)
        await asyncio.to_thread(sys.stdin.read)
    finally:
        await node.close()


async def talk(node: Node, other: str) -> None:
    stream = await node.open(other, ECHO, DATA, timeout=10)
    await stream.send(Data(), b"there", stall=10)
    await stream.receive(stall=10)
    assert await stream.receive_payload(stall=10) == b"there"


def start(lab: Lab, folder: Path, name: str, *bootstrap: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "peer", str(folder / name), lab.address(name), *bootstrap]
    return subprocess.Popen(lab.command(name, command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line
    return line


def meet_at_once() -> None:
    """Peers that come at the same moment, and know a peer that is there, dial each other at the same moment too."""
    with Lab({name: Link(delay=25) for name in ("door", *PEERS)}) as lab:
        for _ in range(TIMES):
            with tempfile.TemporaryDirectory() as name:
                door = start(lab, Path(name), "door")
                address = line_of(door)
                peers = [start(lab, Path(name), peer, address) for peer in PEERS]
                ids = [line_of(process).rpartition("/")[2] for process in peers]
                for process, own in zip(peers, ids, strict=True):
                    assert process.stdin is not None
                    process.stdin.write(" ".join(other for other in ids if other != own) + "\n")
                    process.stdin.flush()
                assert [line_of(process) for process in peers] == ["heard"] * len(PEERS)
                for process in (*peers, door):
                    process.communicate("\n" if process is door else None, timeout=WITHIN)
                    assert process.returncode == 0


@pytest.mark.skipif(not os.access(TUN, os.R_OK | os.W_OK), reason=f"{TUN} cannot be opened")
def test_peers_that_dial_each_other_at_the_same_moment_both_get_through() -> None:
    command = enclosed([sys.executable, __file__, "meet"])
    ended = subprocess.run(command, stderr=subprocess.PIPE, timeout=110)
    assert ended.returncode == 0, ended.stderr.decode()


if __name__ == "__main__":
    if sys.argv[1] == "peer":
        uvloop.run(peer(*sys.argv[2:]))
    else:
        meet_at_once()
