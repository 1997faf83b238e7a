"""What a stranger can do to the rounds of a peer by talking to it: little."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import pytest
from loops import JumpingLoop, run
from stream_ends import LONG, end

from prime_p2p.allreduce.butterfly import DATA, Hello
from prime_p2p.allreduce.exchanges import Exchanges
from prime_p2p.errors import BadInput
from prime_p2p.network import dropped
from prime_p2p.network.node import Node
from prime_p2p.network.streams import Stream, stream_over
from prime_p2p.swarm import events as ev
from prime_p2p.swarm import messages as say
from prime_p2p.swarm.gathering import RoundPolicy, Seen
from prime_p2p.swarm.membership import MOST_PEERS, Heartbeat, Membership, first_heartbeat
from prime_p2p.swarm.roster import MOST_BY_HEARSAY
from prime_p2p.swarm.rounds import REMEMBERED, RoundMachine

POLICY = RoundPolicy(patience=60.0, grace=10.0, stall_timeout=4.0)
ME, FELLOW, STRANGER = "peer-of-mine", "peer-of-the-run", "peer-of-no-run"
STATE = (3, bytes(range(32)))


class Machine:
    """A peer that holds a state, and what it does."""

    def __init__(self) -> None:
        self.now = 0.0
        self.machine = RoundMachine("run", ME, POLICY)
        self.machine.handle(ev.StateChanged(*STATE), self.now)

    def hear(self, sender: str, message: Any) -> list[ev.Action]:
        return self.machine.handle(ev.Received(sender, message), self.now)

    def until(self, kind: type[ev.Action]) -> float:
        """Let time go by until it does something of this kind; returns how long that took."""
        began = self.now
        while self.now < began + 1000.0:
            self.now = self.machine.wake_at(self.now)
            if any(isinstance(action, kind) for action in self.machine.handle(ev.Woken(), self.now)):
                return self.now - began
        raise AssertionError("it never does")


def told(actions: list[ev.Action]) -> set[str]:
    return {action.to for action in actions if isinstance(action, ev.Send)}


def begin(members: list[str], nonce: int = 1) -> say.Begin:
    lines = [say.GroupMember(peer_id=peer, nonce=nonce, weight=1, bandwidth=1.0) for peer in members]
    return say.Begin(step=STATE[0], digest=STATE[1], members=lines)


def join(awaited: list[str]) -> say.Join:
    return say.Join(
        step=STATE[0], digest=STATE[1], nonce=1, weight=1, bandwidth=1.0, terms=b"", suspects=[], awaited=awaited
    )


def test_one_that_only_talks_is_not_waited_for_as_long_as_a_peer_of_the_run() -> None:
    peer = Machine()
    peer.hear(STRANGER, say.Ping())
    peer.machine.handle(ev.Ready(1, 1.0), peer.now)
    assert peer.until(ev.StartReduce) <= POLICY.detection + POLICY.tick


def test_a_peer_of_the_run_that_does_not_come_is_waited_for() -> None:
    peer = Machine()
    peer.machine.handle(ev.PeersSeen({FELLOW: Seen(FELLOW, *STATE)}), peer.now)
    peer.hear(FELLOW, say.Ping())
    peer.machine.handle(ev.Ready(1, 1.0), peer.now)
    assert peer.until(ev.StartReduce) >= POLICY.patience


def test_peers_that_somebody_invents_hear_nothing_of_us() -> None:
    peer = Machine()
    peer.machine.handle(ev.PeersSeen({FELLOW: Seen(FELLOW, *STATE)}), peer.now)
    invented = [f"invented-{number}" for number in range(200)]
    actions = peer.hear(STRANGER, begin([ME, FELLOW, STRANGER, *invented]))
    assert told(actions) == {FELLOW, STRANGER}


def test_those_known_by_hearsay_alone_are_bounded() -> None:
    peer = Machine()
    peer.machine.handle(ev.PeersSeen({FELLOW: Seen(FELLOW, 1, bytes(32))}), peer.now)
    for number in range(50):
        peer.hear(STRANGER, join([f"invented-{number}-{other}" for other in range(say.MAX_MEMBERS)]))
    known = peer.machine._meeting.known
    assert len(known) <= MOST_BY_HEARSAY
    peer.hear(STRANGER, join([FELLOW]))
    assert FELLOW in peer.machine._meeting.known


def test_groups_that_strangers_invent_do_not_displace_what_is_remembered_of_ours() -> None:
    peer = Machine()
    peer.machine.handle(ev.Ready(1, 1.0), peer.now)
    attempt = peer.machine.attempt
    assert attempt is not None
    peer.machine.handle(ev.ReduceDone(attempt.group.id, bytes(32), bytes(64)), peer.now)
    assert attempt.group.id in peer.machine._last_words
    for number in range(10 * REMEMBERED):
        peer.hear(STRANGER, begin([ME, STRANGER], nonce=number))
        peer.hear(STRANGER, say.Abort(group_id=number.to_bytes(32, "big"), blamed=[]))
    assert attempt.group.id in peer.machine._last_words
    assert len(peer.machine._refused) <= REMEMBERED


@pytest.mark.parametrize("peer", ["\x1b[2J-peer", "peer\nof mine", "p" * 129, "péer-of-mine", " peer-of-mine"])
def test_ids_of_peers_are_plain_text(peer: str) -> None:
    with pytest.raises(ValueError, match="awaited"):
        join([peer])


# ---- data streams


class Streams:
    """Streams of one peer that said which group they are for, and what became of them here."""

    def __init__(self, stall: float) -> None:
        self.exchanges = Exchanges(cast(Node, None), "run", stall)
        self._ends: list[Stream] = []

    async def come(self, group: int, lane: int = 0) -> asyncio.Task[None]:
        here, there = socket.socketpair()
        near, far = await stream_over(here, STRANGER, DATA), await stream_over(there, ME, DATA)
        self._ends += [near, far]
        await far.send(Hello(group_id=group.to_bytes(32, "big"), lane=lane), stall=LONG)
        task = asyncio.ensure_future(self.exchanges._incoming(near))
        await asyncio.sleep(0.1)  # on a clock that jumps: when it has been read
        assert near in self.exchanges._waiting[STRANGER, lane]
        return task

    async def go(self) -> None:
        """The sender leaves."""
        self._ends[-1].abort()

    async def close(self) -> None:
        await end(*self._ends)
        self.exchanges.close()


def test_a_stream_for_a_group_that_never_begins_is_let_go_when_its_sender_leaves() -> None:
    async def test() -> None:
        streams = Streams(stall=1000.0)
        waiting = await streams.come(1)
        await streams.go()
        await waiting
        assert asyncio.get_running_loop().time() < 1000.0
        assert not streams.exchanges._waiting
        await streams.close()

    run(test(), JumpingLoop())


def test_streams_for_groups_that_never_begin_make_way_for_those_of_later_ones() -> None:
    """A peer is in one group at a time: what its failed attempts left here does not use up the streams it may have."""

    async def test() -> None:
        streams = Streams(stall=1000.0)
        waiting = [await streams.come(group) for group in range(20)]
        beside = await streams.come(0, lane=1)
        await asyncio.gather(*waiting[:-2])
        assert [task.done() for task in (*waiting[-2:], beside)] == [False] * 3
        assert asyncio.get_running_loop().time() < 1000.0
        await asyncio.gather(*waiting, beside)
        assert dropped.counts() == {"hello": 3}
        await streams.close()

    run(test(), JumpingLoop())


# ---- heartbeats


def test_of_more_peers_than_one_can_deal_with_those_known_first_stay() -> None:
    membership = Membership(cast(Node, None), "run", lambda: None)
    beats = {f"peer-{number:05}": Heartbeat(step=number) for number in range(10 * MOST_PEERS)}
    late = dict(list(beats.items())[-10:])
    membership._others = late
    dealt_with = membership._as_many_as_we_can_deal_with(beats)
    assert len(dealt_with) == MOST_PEERS
    assert late.items() <= dealt_with.items()
    assert membership._as_many_as_we_can_deal_with(late) == late


@pytest.mark.parametrize("name", ["x" * 65, "two\nlines"])
def test_a_peer_whose_own_name_others_would_not_take_is_told(name: str) -> None:
    assert first_heartbeat(b"", "Jürgen's box", []).name == "Jürgen's box"
    with pytest.raises(BadInput, match="cannot be told to others"):
        first_heartbeat(b"", name, [])
