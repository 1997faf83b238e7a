"""The life of a bootstrap node: an address to find the others by, and a relay; it holds nothing and trains nothing."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import uvloop

from prime_p2p.errors import PrimeError
from prime_p2p.lifetime import stop_signals, stop_with_parent
from prime_p2p.monitor import logs
from prime_p2p.network.deadline import within
from prime_p2p.network.dial_back import DialBack
from prime_p2p.network.node import Node, NodeConfig
from prime_p2p.network.speed import Speed

if TYPE_CHECKING:
    from prime_p2p.monitor.prometheus import MetricsPage

logger = logging.getLogger(__name__)

_ANSWER = 5.0  # seconds for a figure of the metrics
_LOOK_INTERVAL = 1.0  # seconds between two looks at whether the node still goes on


class Stopped(PrimeError):
    """The node was told to stop before it could be reached."""

    exit_code = 130


def run(
    config: NodeConfig,
    announce: Callable[[str], None],
    metrics: tuple[str, int] | None = None,
    *,
    watch_parent: bool = False,
) -> None:
    """Serve until a signal says stop, or with ``watch_parent`` until standard input closes.

    ``announce`` is given the multiaddress that others need, once, when the node can be reached at it. ``metrics`` are a
    host and a port to serve some at for Prometheus.

    Raises:
        BadInput, Unreachable: The node cannot be started with this configuration.
        PrimeError: The libp2p daemon ended, and no other one could be started.
    """
    uvloop.run(_live(config, announce, metrics, watch_parent))


async def _live(
    config: NodeConfig, announce: Callable[[str], None], metrics: tuple[str, int] | None, watch_parent: bool
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in stop_signals():
        loop.add_signal_handler(number, stop.set)
    if watch_parent:
        stop_with_parent(lambda: loop.call_soon_threadsafe(stop.set))
    node = await _created(config, stop)
    logs.at(peer_id=node.peer_id)
    page = None
    try:
        page = None if metrics is None else _metrics_page(node, loop, metrics)
        await DialBack(node).serve()
        await Speed(node).serve()
        addresses = await node.addresses()
        logger.info("reachable at %s", " ".join(addresses))
        announce(best_address(addresses, config.announce))
        while not stop.is_set():
            if not node.alive:
                raise PrimeError(
                    "the libp2p daemon of this bootstrap node cannot be kept running; start the node again"
                )
            await _wait(stop, _LOOK_INTERVAL)
    finally:
        if page is not None:
            await asyncio.to_thread(page.close)
        await node.close()


def _metrics_page(node: Node, loop: asyncio.AbstractEventLoop, place: tuple[str, int]) -> MetricsPage:
    from prime_p2p.monitor.prometheus import MetricsPage, node_registry

    def connected() -> float:
        return len(asyncio.run_coroutine_threadsafe(node.connections(), loop).result(_ANSWER))

    return MetricsPage(node_registry("", {"connected_peers": ("Peers there is a connection to.", connected)}), place)


async def _created(config: NodeConfig, stop: asyncio.Event) -> Node:
    """The node, unless the request to stop comes first."""
    creation = asyncio.ensure_future(Node.create(config))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((creation, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not creation.done():
        creation.cancel()
        await asyncio.wait((creation,))
        raise Stopped("stopped before the node could be reached")
    return creation.result()


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        await within(seconds, stop.wait())
    except asyncio.TimeoutError:
        return


def best_address(addresses: Sequence[str], announced: Sequence[str] = ()) -> str:
    """The address to give to others: an announced one, else a public one, else one of the local network, else any.

    Raises:
        PrimeError: The node listens nowhere.
    """
    if not addresses:
        raise PrimeError("this bootstrap node listens at no address; check --host and --announce")
    return min(addresses, key=lambda address: _remoteness(address, announced))


def _remoteness(address: str, announced: Sequence[str]) -> tuple[int, int]:
    """Smaller is easier to reach from elsewhere; IPv4 goes before IPv6, and TCP before anything built on it or UDP."""
    plain = 0 if re.fullmatch(r"/[^/]+/[^/]+/tcp/\d+(/p2p/[^/]+)?", address) else 2
    plain += address.startswith("/ip6/")
    if any(address == one or address.startswith(f"{one}/p2p/") for one in announced):
        return 0, plain
    host = address.split("/")[2] if address.count("/") >= 2 else ""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return 1, plain  # a DNS name
    return (4 if ip.is_loopback else 3 if ip.is_link_local else 1 if ip.is_global else 2), plain
