"""Meeting the swarm for the first time, through those of the bootstrap peers that answer."""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from prime_p2p.errors import PrimeError, Unreachable
from prime_p2p.network import clock, tasks
from prime_p2p.network.board import Board
from prime_p2p.network.deadline import within

log = logging.getLogger(__name__)

_OTHERS = 2.0  # seconds that the other bootstrap peers have to answer once one has; later the board finds them

_CLOCK_HINT = " (one of you may have a clock that is more than an hour off)"

T = TypeVar("T")


async def join(board: Board, bootstrap: dict[str, str], timeout: float, *, may_be_first: bool = False) -> None:
    """Reach the bootstrap peers (address -> peer id), take over their time, then become known to them.

    Raises:
        Unreachable: none has answered within `timeout` seconds, where this peer may not be the first one there; says
            why for each of them.
    """
    failed: dict[str, str] = {}  # address -> why

    async def tried(address: str, step: Awaitable[T]) -> T | None:
        failed[address] = f"no answer within {_OTHERS:g} s of the first"
        try:
            result = await within(timeout, step)
        except asyncio.TimeoutError:
            failed[address] = f"no answer within {timeout:g} s"
        except PrimeError as error:
            failed[address] = f"{error}{_CLOCK_HINT if 'certificate' in str(error) else ''}"
        else:
            del failed[address]
            return result
        return None

    clock.follow([])  # so far there is only this machine's own
    clock.adopt(
        await _first([tried(address, board.reach(peer, address, timeout)) for address, peer in bootstrap.items()])
    )
    there = {address: peer for address, peer in bootstrap.items() if address not in failed}
    await asyncio.gather(*(tried(address, board.join(peer, timeout)) for address, peer in there.items()))
    reasons = [f"{address}: {failed[address]}" for address in bootstrap if address in failed]
    if reasons and len(reasons) == len(bootstrap) and not may_be_first:
        raise Unreachable("no bootstrap peer answers: " + "; ".join(reasons))
    for line in reasons:
        log.warning("bootstrap peer %s", line)
    peers: dict[str, list[str]] = {}
    for address, peer_id in bootstrap.items():
        peers.setdefault(peer_id, []).append(address)
    await board.start(peers)


async def _first(tries: list[Coroutine[Any, Any, T | None]]) -> list[T]:
    """What has come a while after the first one that came; None is nothing."""
    pending = {asyncio.ensure_future(one) for one in tries}
    found: list[T] = []
    deadline: float | None = None
    try:
        while pending and (deadline is None or deadline > _now()):
            rest = None if deadline is None else deadline - _now()
            done, pending = await asyncio.wait(pending, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
            found += [result for result in (task.result() for task in done) if result is not None]
            if found and deadline is None:
                deadline = _now() + _OTHERS
    finally:
        await tasks.end(pending)
    return found


def _now() -> float:
    return asyncio.get_running_loop().time()
