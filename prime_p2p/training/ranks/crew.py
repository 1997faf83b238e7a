"""The other ranks of a peer, as rank 0 sees them: it orders the same of all of them, does it too, and hears them.

Between two orders the others wait at their channels, not in a collective, so a round may take as long as it likes. The
end of a rank is noticed at once by its channel; then the model is no more whole, and the peer ends.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from signal import Signals
from typing import Any, TypeVar

import torch

from prime_p2p.errors import PrimeError
from prime_p2p.training.ranks import sharding
from prime_p2p.training.ranks.channel import Channel, Ended, Message

T = TypeVar("T")
Tensors = Mapping[str, torch.Tensor]

ANSWER_DEADLINE = sharding.COLLECTIVE_DEADLINE + 60.0  # seconds for a rank to do what rank 0 has done already
NOTICE_DEADLINE = 5.0  # seconds for the end of a rank to be noticed, once a collective has failed
LEAVE_DEADLINE = 10.0  # seconds for a rank to end once another one has, before it is made to

FAILED = "failed"
"""The last message of a rank that cannot go on; its ``reason`` is one line."""


class RankLost(PrimeError):
    """A rank of this peer has ended, or does not answer."""


class Crew:
    """Ranks 1 and up, each at the other end of a socket."""

    def __init__(self, sockets: Mapping[int, socket.socket], children: Mapping[int, subprocess.Popen[bytes]]) -> None:
        """Takes the sockets over; ``children`` are those ranks that this process has started, and waits for."""
        self.on_loss: Callable[[], object] = lambda: None
        """Called once a rank is lost, in another thread."""
        self._children = children
        self._lost: RankLost | None = None
        self._lock = threading.Lock()
        self._noticed = threading.Event()
        self._heard = threading.Event()  # also by the thread that gives orders
        self._closing = threading.Event()
        self._channels = {rank: Channel(end, partial(self._ended, rank)) for rank, end in sockets.items()}

    @property
    def ranks(self) -> int:
        """With rank 0."""
        return len(self._channels) + 1

    def order(self, name: str, tensors: Sequence[Tensors] | Tensors | None = None, **values: Any) -> None:
        """Send an order to all, the same tensors or, from a list, those with the number of the rank."""
        for rank, channel in self._channels.items():
            self.check()
            try:
                channel.send(name, tensors[rank] if isinstance(tensors, Sequence) else tensors, **values)
            except Ended:
                raise self._loss(rank) from None

    def answers(self) -> list[Message]:
        """What each answers to the order before. Raises RankLost."""
        return [self._answer(rank, channel) for rank, channel in self._channels.items()]

    def together(
        self, own: Callable[[], T], name: str, tensors: Sequence[Tensors] | Tensors | None = None, **values: Any
    ) -> tuple[T, list[Message]]:
        """Order something, do our ``own`` part of it meanwhile, and wait for the answers. Raises RankLost."""
        self.order(name, tensors, **values)
        with self.naming_the_lost():
            result = own()
        return result, self.answers()

    @contextmanager
    def naming_the_lost(self) -> Iterator[None]:
        """Where a collective fails in here because a rank has ended, it is RankLost that comes out."""
        try:
            yield
        except RuntimeError:  # of torch.distributed
            if self._noticed.wait(NOTICE_DEADLINE):
                self.check()
            raise

    def close(self) -> None:
        """Have all others end, and wait for those that are children of this process."""
        self._closing.set()
        self._heard.set()
        for channel in self._channels.values():
            channel.close()
        if self._lost is None:
            sharding.leave_group()
        for child in self._children.values():
            try:
                child.wait(LEAVE_DEADLINE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _answer(self, rank: int, channel: Channel) -> Message:
        try:
            answer = channel.receive(ANSWER_DEADLINE)
        except TimeoutError:
            raise RankLost(f"rank {rank} of this peer has done nothing for {ANSWER_DEADLINE:.0f} s{_ADVICE}") from None
        except Ended:
            raise self._loss(rank) from None
        if answer.name == FAILED:
            raise self._loss(rank)
        return answer

    def check(self) -> None:
        """Raises RankLost once a rank is."""
        if self._lost is not None:
            self._heard.set()
            raise self._lost

    def _loss(self, rank: int) -> RankLost:
        """The first rank that was lost: another one may have failed because of it."""
        self._noticed.wait(NOTICE_DEADLINE)
        self._heard.set()
        return self._lost or RankLost(f"rank {rank} of this peer reads nothing any more{_ADVICE}")

    def _ended(self, rank: int) -> None:
        """Called in the thread of its channel."""
        if self._closing.is_set():
            return
        with self._lock:
            if self._lost is not None:
                return
            self._lost = RankLost(f"rank {rank} of this peer {self._how(rank)}{_ADVICE}")
        self._noticed.set()
        self.on_loss()
        # Whoever gives orders may be in a collective that never ends, where nothing is heard.
        threading.Thread(target=self._end_with_it, name="rank lost", daemon=True).start()

    def _how(self, rank: int) -> str:
        words = self._channels[rank].last
        if words is not None and words.name == FAILED:
            return f"cannot go on: {words.values['reason']}"
        try:
            code = self._children[rank].wait(NOTICE_DEADLINE)
        except (KeyError, subprocess.TimeoutExpired):
            return "has ended"
        return f"was killed by {Signals(-code).name}" if code < 0 else f"has ended with exit code {code}"

    def _end_with_it(self) -> None:
        if not self._heard.wait(LEAVE_DEADLINE):
            print(f"prime-p2p: {self._lost}", file=sys.stderr, flush=True)
            os._exit(RankLost.exit_code)


_ADVICE = ", so the peer leaves; started again, it goes on from its last checkpoint"
