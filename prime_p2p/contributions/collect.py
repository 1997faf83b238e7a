"""The certificates of a run, from whatever peers of it are there, asked from outside."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from prime_p2p.contributions.choice import Wanted
from prime_p2p.contributions.conversation import FAILURES, Given, ask_certificates, ask_held
from prime_p2p.contributions.messages import MOST_STEPS
from prime_p2p.errors import Unreachable
from prime_p2p.network.frames import one_line
from prime_p2p.network.node import Node
from prime_p2p.network.version import PROTOCOL
from prime_p2p.network.visit import on_a_node
from prime_p2p.swarm import membership
from prime_p2p.swarm.certificate import Certificate

ASKED = 16  # peers at most
DEADLINE = 300.0  # seconds for all of it
MOST_REJECTED = 1000  # that are told of


@dataclass(frozen=True)
class Rejected:
    """What a peer gave, or did not give, that does not count. ``outer_step`` is None where it is about all it said."""

    peer_id: str
    outer_step: int | None
    reason: str


@dataclass
class Collected:
    """What the peers of a run have proof of, from outer step ``since`` on. ``asked`` are those that answered."""

    run: str
    since: int
    asked: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    certificates: list[Certificate] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)

    def reject(self, peer: str, step: int | None, reason: object) -> None:
        if len(self.rejected) < MOST_REJECTED:
            self.rejected.append(Rejected(peer, None if step is None else step + 1, one_line(reason, 200)))


def collect(bootstrap: Sequence[str], run: str | None, since: int) -> Collected:
    """Ask the peers of a run; ``since`` is the first outer step that counts, from 1 on.

    Raises BadInput where it is not said which of several runs, or there is no such run, and Unreachable where nobody
    answers.
    """
    return on_a_node(bootstrap, lambda node: _collect(node, run, since), DEADLINE)


async def _collect(node: Node, run: str | None, since: int) -> Collected:
    name = membership.which(await membership.runs(node), run)
    beats = await membership.heartbeats(node, name)
    peers = [peer for peer, beat in beats.items() if beat.protocol == PROTOCOL]
    collected = Collected(name, since, names={peer: beat.name for peer, beat in beats.items() if beat.name})
    return await ask_all(node, random.sample(peers, min(ASKED, len(peers))), collected)


async def ask_all(node: Node, peers: Sequence[str], collected: Collected) -> Collected:
    """Ask these, and check what they give. Raises Unreachable where none of them answers."""
    first = max(0, collected.since - 1)  # a certificate is of the state that its outer step leads on from
    answers = await asyncio.gather(
        *(ask_held(node, collected.run, peer, first) for peer in peers), return_exceptions=True
    )
    held = {peer: answer for peer, answer in zip(peers, answers, strict=True) if isinstance(answer, dict)}
    for peer, answer in zip(peers, answers, strict=True):
        if isinstance(answer, FAILURES):
            collected.reject(peer, None, answer)
        elif isinstance(answer, BaseException):
            raise answer
    if not held:
        raise Unreachable(f"no peer of run {collected.run} says what was contributed; try again")
    collected.asked = sorted(held)
    wanted = Wanted(held, least=(len(held) + 1) // 2)
    for peer, step in wanted.held_by_few:
        collected.reject(peer, step, "held by fewer than half of the peers that were asked")
    while wanted:
        orders = wanted.orders(MOST_STEPS)
        await asyncio.gather(*(_take(node, peer, order, wanted, collected) for peer, order in orders.items()))
    collected.certificates.sort(key=lambda certificate: certificate.group.step)
    return collected


async def _take(node: Node, peer: str, order: dict[int, bytes], wanted: Wanted, collected: Collected) -> None:
    try:
        given = await ask_certificates(node, collected.run, peer, order)
    except FAILURES as error:
        collected.reject(peer, None, error)
        given = Given()
    for step, reason in given.rejected.items():
        collected.reject(peer, step, reason)
        wanted.refuse(peer, step)
    for certificate in given.certificates:
        wanted.done(certificate.group.step)
    collected.certificates += given.certificates
    if not given.certificates and not given.rejected:
        wanted.lose(peer)
