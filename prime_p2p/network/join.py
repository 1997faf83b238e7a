"""Meeting the swarm for the first time, through those of the bootstrap peers that answer."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from prime_p2p.errors import PrimeError, Unreachable
from prime_p2p.network import clock, tasks
from prime_p2p.network.board import Board
from prime_p2p.network.deadline import within

log = logging.getLogger(__name__)

_OTHERS = 2.0  # seconds that the other bootstrap peers have to answer once one has; later the board finds them
_SPARED = 3.0  # seconds without an answer until the peers known from before are tried too
_KNOWN = 32  # of them

_CLOCK_HINT = " (one of you may have a clock that is more than an hour off)"

T = TypeVar("T")
Try = Callable[[], Coroutine[Any, Any, T | None]]


async def join(
    board: Board,
    bootstrap: dict[str, str],
    known: dict[str, list[str]],
    timeout: float,
    *,
    may_be_first: bool = False,
) -> None:
    """Reach the bootstrap peers (address -> peer id), take over their time, then become known to them.

    Where none of them is there the peers `known` from before (peer id -> addresses) will do.

    Raises:
        Unreachable: none has answered within `timeout` seconds, where this peer may not be the first one there; says
            why for each bootstrap peer.
    """
    failed: dict[str, str] = {}  # address of a bootstrap peer, or id of a known one -> why
    reached: dict[str, str] = {}  # the same -> peer id

    async def tried(name: str, step: Awaitable[T]) -> T | None:
        failed[name] = f"no answer within {_OTHERS:g} s of the first"
        try:
            result = await within(timeout, step)
        except asyncio.TimeoutError:
            failed[name] = f"no answer within {timeout:g} s"
        except PrimeError as error:
            failed[name] = f"{error}{_CLOCK_HINT if 'certificate' in str(error) else ''}"
        else:
            del failed[name]
            return result
        return None

    async def reach(name: str, peer_id: str, addresses: list[str]) -> clock.Reading | None:
        reading = await tried(name, board.reach(peer_id, addresses, timeout))
        if reading is not None:
            reached[name] = peer_id
        return reading

    clock.follow([])  # so far there is only this machine's own
    first = [partial(reach, address, peer_id, [address]) for address, peer_id in bootstrap.items()]
    spare = [partial(reach, peer, peer, known[peer]) for peer in list(known)[:_KNOWN]]
    clock.adopt(await _first(first, spare))
    await asyncio.gather(*(tried(name, board.join(peer, timeout)) for name, peer in list(reached.items())))
    met = reached.keys() - failed.keys()
    reasons = [f"{address}: {failed[address]}" for address in bootstrap if address in failed]
    if bootstrap and not met and not may_be_first:
        more = f"; nor does any of {len(spare)} peers known from before" if spare else ""
        raise Unreachable("no bootstrap peer answers: " + "; ".join(reasons) + more)
    for line in reasons:
        log.warning("bootstrap peer %s", line)
    if met and not met & bootstrap.keys():
        log.warning("no bootstrap peer answers; joined through %d of the peers known from before", len(met))
    peers: dict[str, list[str]] = {}
    for address, peer_id in bootstrap.items():
        peers.setdefault(peer_id, []).append(address)
    await board.start(peers)


async def _first(tries: Sequence[Try[T]], spare: Sequence[Try[T]]) -> list[T]:
    """What has come a while after the first one that came; None is nothing.

    What is `spare` is tried too once nothing has come for a while, or all else has failed.
    """
    loop = asyncio.get_running_loop()
    pending = {asyncio.ensure_future(one()) for one in tries}
    found: list[T] = []
    deadline = loop.time() + _SPARED if spare else None
    try:
        while True:
            late = deadline is not None and loop.time() >= deadline
            if not found and spare and (late or not pending):
                pending |= {asyncio.ensure_future(one()) for one in spare}
                spare, deadline = (), None
            if not pending or (found and late):
                break
            rest = None if deadline is None else max(0.0, deadline - loop.time())
            done, pending = await asyncio.wait(pending, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
            came = [result for result in (task.result() for task in done) if result is not None]
            if came and not found:
                deadline = loop.time() + _OTHERS
            found += came
    finally:
        await tasks.end(pending)
    return found
