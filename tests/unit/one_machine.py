"""One round machine, driven message by message. ``FIRST`` leads before ``US``, and that before ``LAST``."""

from __future__ import annotations

from prime_p2p.network.frames import Message
from prime_p2p.swarm import events as ev
from prime_p2p.swarm import messages as say
from prime_p2p.swarm.gathering import RoundPolicy, Seen
from prime_p2p.swarm.groups import lead_order
from prime_p2p.swarm.rounds import RoundMachine

STEP, DIGEST = 3, b"d" * 32
LATER, LATER_DIGEST = 4, b"e" * 32
TOKENS = 1000  # behind the state at STEP; a step is made of 100
FIRST, US, LAST = lead_order("run", STEP, [f"peer-{index:04}" for index in range(3)])
POLICY = RoundPolicy(patience=10.0, grace=5.0, stall_timeout=5.0)


def join(
    nonce: int = 0,
    suspects: list[str] | None = None,
    awaited: list[str] | None = None,
    step: int = STEP,
    terms: bytes = b"",
) -> say.Join:
    digest = DIGEST if step == STEP else LATER_DIGEST
    return say.Join(
        step=step,
        digest=digest,
        nonce=nonce,
        weight=1,
        bandwidth=1.0,
        terms=terms,
        suspects=suspects or [],
        awaited=awaited or [],
    )


def open_(hurry: bool = False, step: int = STEP) -> say.Open:
    return say.Open(step=step, digest=DIGEST if step == STEP else LATER_DIGEST, hurry=hurry)


def elsewhere(step: int, digest: bytes = LATER_DIGEST, tokens: int | None = None) -> say.Elsewhere:
    return say.Elsewhere(step=step, digest=digest, tokens=tokens_at(step) if tokens is None else tokens)


def tokens_at(step: int) -> int:
    return TOKENS + 100 * (step - STEP)


def redirect(leader: str, awaited: list[str] | None = None) -> say.Redirect:
    return say.Redirect(step=STEP, digest=DIGEST, leader=leader, awaited=awaited or [])


def begun(*members: str) -> say.Begun:
    return say.Begun(step=STEP, digest=DIGEST, members=sorted(members))


def begin(*members: tuple[str, int]) -> say.Begin:
    lines = [say.GroupMember(peer_id=peer, nonce=nonce, weight=1, bandwidth=1.0) for peer, nonce in members]
    return say.Begin(step=STEP, digest=DIGEST, members=lines)


class Peer:
    """A machine at ``STEP`` that sees the other two there."""

    def __init__(self, *, sees: tuple[str, ...] = (FIRST, LAST), expected: bool = True) -> None:
        self.now = 0.0
        self.machine = RoundMachine("run", US, POLICY, first_nonce=10)
        self.actions: list[ev.Action] = []
        self.see({peer: Seen(peer, STEP, DIGEST, expected, tokens=TOKENS) for peer in sees})
        self.take(ev.StateChanged(STEP, DIGEST, TOKENS))

    def take(self, event: ev.Event) -> None:
        self.actions += self.machine.handle(event, self.now)

    def see(self, peers: dict[str, Seen]) -> None:
        self.take(ev.PeersSeen(peers))

    def hear(self, sender: str, *messages: Message) -> None:
        for message in messages:
            self.take(ev.Received(sender, message))

    def lose(self, peer: str) -> None:
        self.take(ev.PeerLost(peer))

    def be_ready(self) -> None:
        self.take(ev.Ready(weight=1, bandwidth=1.0))

    def wait(self, seconds: float) -> None:
        """Let time pass, as a runner would."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.machine.wake_at(self.now))
            self.take(ev.Woken())

    def did(self) -> list[ev.Action]:
        """What the machine has said to do since the last call."""
        actions, self.actions = self.actions, []
        return actions

    def said(self) -> list[tuple[str, Message]]:
        return [(action.to, action.message) for action in self.did() if isinstance(action, ev.Send)]

    @property
    def nonce(self) -> int:
        """Of the latest join."""
        joins = [action.message for action in self.actions if isinstance(action, ev.Send)]
        return next(message.nonce for message in reversed(joins) if isinstance(message, say.Join))

    @property
    def group(self) -> set[str]:
        assert self.machine.attempt is not None
        return set(self.machine.attempt.group.peer_ids)
