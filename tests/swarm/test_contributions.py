"""Certificates of real rounds: kept, passed on to who comes later, and added up by somebody who only looks."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from unittest import mock

import pytest
from nodes import Swarm, address, run, until
from round_peers import FIRST, RoundPeer, State, group_of, one_round, round_peers, state_after

from prime_p2p.contributions import exchange
from prime_p2p.contributions.exchange import Exchange
from prime_p2p.contributions.ledger import Ledger
from prime_p2p.network import dropped
from prime_p2p.network.node import Node
from prime_p2p.swarm import commit
from prime_p2p.swarm.certificate import Certificate
from prime_p2p.swarm.membership import Heartbeat, Membership

RUN = "rounds"
ROUNDS = 2


class Keeper:
    """A peer that keeps certificates, and asks ``fellows`` for others."""

    def __init__(self, swarm: Swarm, node: Node, *fellows: Node) -> None:
        self.ledger = Ledger(swarm.folder / f"certificates-of-{node.peer_id}", RUN)
        self.exchange = Exchange(
            node, RUN, self.ledger, lambda: [one.peer_id for one in fellows], step=lambda: ROUNDS + 1
        )

    async def has(self, certificates: int) -> bool:
        return len(self.ledger.held()) == certificates


async def keeper(swarm: Swarm, node: Node, *fellows: Node) -> Keeper:
    made = Keeper(swarm, node, *fellows)
    await made.exchange.start()
    return made


async def certified_rounds(peers: list[RoundPeer], keepers: list[Keeper]) -> list[Certificate]:
    """Peers make ``ROUNDS`` outer steps and keep what proves them."""
    state: State = FIRST
    made = []
    for _ in range(ROUNDS):
        results = await one_round(peers, state)
        for result, one in zip(results, keepers, strict=True):
            assert result.certificate is not None
            one.exchange.keep(result.certificate)
        (certificate,) = {result.certificate for result in results}
        assert certificate is not None
        made.append(certificate)
        state = state_after(group_of(results))
    return made


def forged(certificate: Certificate, by: str) -> Certificate:
    """The same one, in which a peer has a thousand times its tokens."""
    group = certificate.group
    members = tuple(
        replace(member, weight=1000 * member.weight) if member.peer_id == by else member for member in group.members
    )
    return replace(certificate, group=replace(group, members=members))


async def contributions(bootstrap: str, *options: str) -> tuple[int | None, str, str]:
    """Exit code, output and complaints of the command."""
    command = [sys.executable, "-m", "prime_p2p.cli", "contributions", "--bootstrap", bootstrap, *options]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, complaints = await process.communicate()
    return process.returncode, out.decode(), complaints.decode()


def test_nobody_commits_with_a_member_whose_signature_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "VOTE_STALLS", 0.5)  # how long the others wait for its vote

    async def test(swarm: Swarm) -> None:
        *_, liar = peers = await round_peers(swarm, 3)
        before = dropped.counts()["vote"]
        for peer in peers:
            peer.hold(FIRST, peers)
        with mock.patch.object(liar.node.identity, "sign", return_value=bytes(64)):
            *waiting, lying = [asyncio.create_task(peer.make_round()) for peer in peers]
            alone = await lying  # it has all votes, with its own
            assert alone.group is not None
            assert len(alone.group.members) == 3
            liar.hold(state_after(alone.group), peers)
            results = await asyncio.gather(*waiting)
        assert [result.group for result in results] == [None, None]
        assert dropped.counts()["vote"] >= before + 4  # its votes, and its word that all have voted
        for one in peers:
            await one.runner.close()

    run(test)


async def nobody(peer_id: str) -> bool:
    return False


def test_what_a_group_has_signed_reaches_late_joiners_and_whoever_looks_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange, "PAUSE", 0.2)

    async def test(swarm: Swarm) -> None:
        peers = await round_peers(swarm, 3)
        keepers = [await keeper(swarm, peer.node) for peer in peers]
        for weight, peer in enumerate(peers, 1):
            peer.weight = weight
        made = await certified_rounds(peers, keepers)
        for one in keepers:
            await until(lambda one=one: one.has(ROUNDS))

        door = await address(peers[0].node)
        late = await swarm.node("late", door)
        liar = peers[2]
        keepers[2].ledger.add(forged(made[0], by=liar.peer_id), ours=True)
        joiner = await keeper(swarm, late, peers[2].node)
        await until(lambda: joiner.has(1))  # the one that the liar has not changed
        assert dropped.counts()["certificate"] >= 1
        assert joiner.ledger.held() == {1: made[1].id}

        for one in peers:
            one.node.guard(nobody)  # who only looks is admitted to nothing else
        for one in (*(peer.node for peer in peers), late):
            membership = Membership(one, RUN, lambda: None)
            await membership.start(Heartbeat(step=ROUNDS, digest=bytes(32)))
            one.closes(membership.close)
        (code, out, _), (unknown, _, complaint) = await asyncio.gather(
            contributions(door, "--json"), contributions(door, "--run", "other")
        )
        assert code == 0
        found = json.loads(out)
        expected = [(peer.peer_id, ROUNDS * weight, weight / 6, ROUNDS, 1.0) for weight, peer in enumerate(peers, 1)]
        assert [
            (row["peer_id"], row["tokens"], row["token_share"], row["commits"], row["commit_share"])
            for row in found["peers"]
        ] == expected[::-1]
        assert len(found["asked"]) == 4
        assert [(one["peer_id"], one["outer_step"]) for one in found["rejected"]] == [(liar.peer_id, 1)]
        assert unknown == 2
        assert complaint.splitlines() == [f"prime-p2p: run other is not known there; known are: {RUN}"]
        for one in peers:
            await one.runner.close()

    run(test)
