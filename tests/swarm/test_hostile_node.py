"""A node that sends nonsense in every way it can, among two that train: they go on as if it were not there."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgpack
import psutil
import pytest
import round_peers
import torch
from flood import MOST, flood
from nodes import Swarm, address, daemons, run, until
from round_peers import FIRST, RoundPeer, State, group_of, one_round, state_after

import prime_p2p.swarm.swarm as place
from prime_p2p.diloco import DiLoCo
from prime_p2p.errors import BadInput
from prime_p2p.network import calls, clock, daemon_config, dropped
from prime_p2p.network._hivemind import DHTID, PeerID, dht_pb2
from prime_p2p.network.daemon import DaemonError
from prime_p2p.network.frames import Message, Schema
from prime_p2p.network.node import MAX_STREAMS_OF_A_PEER, Node
from prime_p2p.network.pipe import EndOfBytes, Stalled
from prime_p2p.network.records import PREFIX
from prime_p2p.network.streams import Stream, StreamError
from prime_p2p.network.version import stream_name
from prime_p2p.state import messages as state_messages
from prime_p2p.swarm import messages as say
from prime_p2p.swarm.gathering import RoundPolicy
from prime_p2p.swarm.membership import Heartbeat, Membership, peers_key, status
from prime_p2p.swarm.swarm import SwarmOptions

POLICY = RoundPolicy(patience=8.0, grace=2.0, stall_timeout=2.0)
RUN = "rounds"
PROTOCOLS = [stream_name(RUN, which) for which in ("control", "data")]
DIGEST = bytes(range(32))
PREFIXES = [struct.pack(">IQ", *lengths) for lengths in ((2 << 30, 0), (20, 2 << 30), (1 << 16, 0))]
OVER = (StreamError, DaemonError, EndOfBytes, Stalled)


class Hostile:
    """What it sends to a victim, again and again until it is stopped."""

    def __init__(self, node: Node, victim: Node) -> None:
        self._node = node
        self._victim = victim.peer_id
        self._random = random.Random(victim.peer_id)
        self.attacks: list[Callable[[], Awaitable[None]]] = [
            *(lambda protocol=protocol: self._write(protocol, self._random.randbytes(500)) for protocol in PROTOCOLS),
            *(
                lambda protocol=protocol, prefix=prefix: self._write(protocol, prefix + bytes(50))
                for protocol in PROTOCOLS
                for prefix in PREFIXES
            ),
            *(lambda protocol=protocol: self._half_a_frame(protocol) for protocol in PROTOCOLS),
            self._joins_of_another_run,
            self._calls,
            self._streams,
        ]

    async def go_on(self) -> None:
        await asyncio.gather(*(self._again_and_again(attack) for attack in self.attacks))

    async def _again_and_again(self, attack: Callable[[], Awaitable[None]]) -> None:
        while True:
            with suppress(*OVER):
                await attack()
            await asyncio.sleep(0.1)

    async def _write(self, protocol: str, data: bytes, seconds: float = 0.5) -> None:
        pipe = await self._node._supervisor.daemon.open(self._victim, protocol, 5.0)
        try:
            await pipe.write([data], 5.0)
            await asyncio.sleep(seconds)
        finally:
            pipe.abort()

    async def _half_a_frame(self, protocol: str) -> None:
        """A byte now and then, for as long as it is let."""
        pipe = await self._node._supervisor.daemon.open(self._victim, protocol, 5.0)
        try:
            await pipe.write([struct.pack(">IQ", 60_000, 0)], 5.0)
            while True:
                await pipe.write([b"\x91"], 5.0)
                await asyncio.sleep(0.2)
        finally:
            pipe.abort()

    async def _joins_of_another_run(self) -> None:
        """Joins to states that nobody holds, groups of peers that nobody knows, and words about no group at all."""
        invented = [f"invented-{self._random.getrandbits(64)}" for _ in range(200)]
        begin = say.Begin(
            step=0,
            digest=DIGEST,
            members=[
                say.GroupMember(peer_id=peer, nonce=1, weight=1, bandwidth=1.0) for peer in (*invented, self._victim)
            ],
        )
        join = {"nonce": 1, "weight": 1, "bandwidth": 1.0, "terms": b"", "suspects": [], "awaited": invented}
        said = [
            say.Join(step=7, digest=DIGEST, **join),
            begin,
            say.Vote(group_id=DIGEST, update_digest=DIGEST, signature=2 * DIGEST),
            say.Committed(group_id=DIGEST, update_digest=DIGEST, signatures=[2 * DIGEST] * 200),
            say.Doubt(group_id=DIGEST, lost=dict.fromkeys(invented[:2], invented)),
            say.Redirect(step=9, digest=DIGEST, leader=invented[0], awaited=invented),
            say.Ping(),
        ]
        await self._say(PROTOCOLS[0], say.CONTROL, said * 20)

    async def _say(self, protocol: str, schema: Schema, messages: list[Message]) -> None:
        stream = await self._node.open(self._victim, protocol, schema, timeout=5.0)
        try:
            for message in messages:
                await stream.send(message, stall=5.0)
            await asyncio.sleep(1.0)
        finally:
            stream.abort()

    async def _calls(self) -> None:
        """What ends hivemind's own process, or keeps it busy."""
        bomb = msgpack.packb(msgpack.ExtType(0x40, b"\x90"))
        for _ in range(1000):
            bomb = msgpack.packb(msgpack.ExtType(0x40, b"\x91" + bomb))
        stub = self._node._board._node.protocol.get_stub(PeerID.from_base58(self._victim))
        key = DHTID.generate(PREFIX + peers_key(RUN)).to_bytes()
        fields: Any = {"keys": [key], "values": [bomb], "expiration_time": [clock.now() + 9], "in_cache": [False]}
        for call, request in (
            (stub.rpc_store, dht_pb2.StoreRequest(subkeys=[b""], **fields)),
            (stub.rpc_store, dht_pb2.StoreRequest(subkeys=[bomb], **fields)),
            (stub.rpc_find, dht_pb2.FindRequest(keys=[key] * 40_000)),
            (stub.rpc_ping, dht_pb2.PingRequest(peer=dht_pb2.NodeInfo(node_id=self._random.randbytes(20)))),
            (stub.rpc_store, dht_pb2.StoreRequest(keys=[bytes(2 * calls.MAX_CALL)])),
        ):
            with pytest.raises(Exception):  # noqa: B017, PT011 -- hivemind's, or a timeout: it gets no answer
                await call(request, timeout=2.0)

    async def _streams(self) -> None:
        """More than it may have, on which it says next to nothing."""
        opening = (self._write(protocol, b"\x00", 5.0) for protocol in PROTOCOLS * MAX_STREAMS_OF_A_PEER)
        await asyncio.gather(*opening, return_exceptions=True)


async def rounds(peers: list[RoundPeer], state: State, count: int) -> State:
    """So many rounds of all of them, with the same update everywhere."""
    for _ in range(count):
        results = await one_round(peers, state)
        group = group_of(results)
        assert len(group.members) == len(peers), results
        assert len({peer.update.digest() for peer in peers}) == 1
        state = state_after(group)
    return state


async def swallow(stream: Stream) -> None:
    """Be there, and answer nothing."""
    while True:
        await stream.receive(stall=60.0)


async def publish_nonsense(node: Node) -> None:
    nonsense = {"name": "\x1b[2J" * 200, "step": -1, "tokens": float("nan"), "addresses": ["x"] * 90, "state": 7}
    await node.publish(peers_key(RUN), nonsense, ttl=60)


@pytest.mark.timeout(180)
def test_the_others_go_on_as_if_it_were_not_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(round_peers, "POLICY", POLICY)

    async def test(swarm: Swarm) -> None:
        peers = await round_peers.round_peers(swarm, 2)
        honest, served = psutil.Process(), daemons()
        memberships = [Membership(peer.node, RUN, lambda: None) for peer in peers]
        for membership in memberships:
            await membership.start(Heartbeat(digest=DIGEST, name="honest"))
        state = await rounds(peers, FIRST, 2)
        before = [one.memory_info().rss for one in (honest, *served)]

        monkeypatch.setattr(daemon_config, "MAX_CALL", 4 * calls.MAX_CALL)  # that it may send more than others take
        hostile = await swarm.node("hostile", await address(peers[0].node))
        await hostile.serve(PROTOCOLS[0], say.CONTROL, swallow)
        await publish_nonsense(hostile)
        attacks = [asyncio.ensure_future(Hostile(hostile, peer.node).go_on()) for peer in peers]
        try:
            await asyncio.sleep(1.0)
            async with flood(await address(peers[0].node)):
                state = await rounds(peers, state, 2)
                assert max(one.num_fds() for one in served) < MOST + 500
                assert honest.num_fds() < 500
            state = await rounds(peers, state, 2)
            assert not any(attack.done() for attack in attacks)
            grown = [now.memory_info().rss - then for now, then in zip((honest, *served), before, strict=True)]
            assert max(grown) < 300 << 20, grown
            for peer in peers:
                assert peer.node._inbound[hostile.peer_id] <= MAX_STREAMS_OF_A_PEER
            assert all(hostile.peer_id not in membership.others for membership in memberships)
            seen = await status(peers[0].node, RUN)
            assert {row["peer_id"] for row in seen} == {peer.peer_id for peer in peers}
        finally:
            for attack in attacks:
                attack.cancel()
            await asyncio.gather(*attacks, return_exceptions=True)
        assert {"frame", "call", "heartbeat", "stream"} <= dropped.counts().keys()
        assert not [line for line in caplog.messages if "daemon" in line]  # none of them had to be replaced

        async def let_go() -> bool:
            gone = all(not peer.node._inbound[hostile.peer_id] for peer in peers)
            return gone and all(one.num_fds() < 100 for one in served)

        await hostile.close()
        await until(let_go)
        late = await swarm.node("late", await address(peers[0].node))
        assert len(await status(late, RUN)) == len(peers)
        await rounds(peers, state, 1)
        for membership in memberships:
            await membership.close()
        for peer in peers:
            await peer.runner.close()

    run(test)


async def describe_something_else(stream: Stream) -> None:
    await stream.receive(stall=60.0)
    await stream.send(state_messages.Description(), b'{"model": {"parameters": 1}}', stall=60.0)


def trainer(swarm: place.Swarm) -> DiLoCo:
    model = torch.nn.Linear(10, 1)
    return DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.1), swarm, inner_steps=1)


def test_one_that_says_it_trains_something_else_keeps_nobody_from_joining() -> None:
    options = SwarmOptions(policy=POLICY)
    with place.Swarm(RUN, (), options) as first, place.Swarm(RUN, first.addresses[:1], options) as liar:
        known = trainer(first)
        liar.call(liar.node.serve(state_messages.protocol(RUN), state_messages.STATE, describe_something_else))
        liar.enter(bytes(16))
        liar.hold(5, DIGEST, 10**9)
        with place.Swarm(RUN, first.addresses[:1], options) as third:
            third.enter(b"")  # to look around
            assert third.wait_for(
                lambda others: all(beat.has_state for beat in others.values()) and len(others) == 2, 30.0
            )
        with place.Swarm(RUN, first.addresses[:1], options) as joiner:
            assert trainer(joiner).state.digest == known.state.digest
        with place.Swarm(RUN, first.addresses[:1], options) as other:
            model = torch.nn.Linear(11, 1)
            with pytest.raises(BadInput, match="trains something else"):
                DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.1), other, inner_steps=1)
