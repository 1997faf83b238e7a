"""Asking one peer for certificates, and checking what it gives."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from prime_p2p.contributions.messages import (
    CONTRIBUTIONS,
    AskCertificates,
    AskHeld,
    Certificates,
    Held,
    WrongAnswer,
    protocol,
    unpack_certificates,
    unpack_held,
)
from prime_p2p.network.frames import FrameError, Message
from prime_p2p.network.node import Node
from prime_p2p.network.streams import StreamError
from prime_p2p.swarm.certificate import BadCertificate, Certificate

STALL = 10.0  # seconds: whoever asks for more than its share is answered later
FAILURES = (StreamError, FrameError, WrongAnswer)
"""How asking a peer may end."""

Answer = TypeVar("Answer", Held, Certificates)


@dataclass
class Given:
    """What a peer gave of what it was asked for: what is signed by all, and by outer step why something is not."""

    certificates: list[Certificate] = field(default_factory=list)
    rejected: dict[int, str] = field(default_factory=dict)


async def ask_held(node: Node, run: str, peer: str, since: int) -> dict[int, bytes]:
    """The ids of the certificates that a peer says it has, by outer step from ``since`` on. Raises one of FAILURES."""
    held = unpack_held(await _ask(node, run, peer, AskHeld(since=since), Held))
    return {step: id_ for step, id_ in held.items() if step >= since}


async def ask_certificates(node: Node, run: str, peer: str, order: Mapping[int, bytes]) -> Given:
    """Some of the certificates of these ids and outer steps, at most ``MOST_STEPS`` of them. Raises one of FAILURES."""
    bodies = unpack_certificates(await _ask(node, run, peer, AskCertificates(steps=list(order)), Certificates))
    return await asyncio.to_thread(_checked, bodies, run, order)


def _checked(bodies: list[bytes], run: str, order: Mapping[int, bytes]) -> Given:
    given = Given()
    for body in bodies:
        try:
            certificate = Certificate.from_bytes(body, run)
        except BadCertificate as reason:
            raise WrongAnswer(f"gave bytes that are no certificate: {reason}") from None
        step = certificate.group.step
        if order.get(step) != certificate.id:
            raise WrongAnswer(f"gave a certificate of outer step {step} that it was not asked for")
        try:
            certificate.check()
        except BadCertificate as reason:
            given.rejected[step] = str(reason)
        else:
            given.certificates.append(certificate)
    return given


async def _ask(node: Node, run: str, peer: str, question: Message, kind: type[Answer]) -> bytes:
    """The payload of the answer, on a stream of its own."""
    stream = await node.open(peer, protocol(run), CONTRIBUTIONS, timeout=STALL)
    try:
        await stream.send(question, stall=STALL)
        if not isinstance(answer := await stream.receive(stall=STALL), kind):
            raise WrongAnswer(f"answered with {answer.kind!r}")
        return await stream.receive_payload(stall=STALL)
    finally:
        stream.abort()
