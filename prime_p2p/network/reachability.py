"""Keeps a node one that others can dial: at addresses of its own, or else through a relay.

libp2p would find out by itself in about three minutes, and take any daemon for a relay (see ``relay``). This asks
others as soon as there are any, and tells whoever runs the peer what to do about it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from prime_p2p.network import tasks
from prime_p2p.network.daemon import DaemonError
from prime_p2p.network.dial_back import MOST_ADDRESSES, NOT_YOURS, DialBack, Reach, direct, ip_of
from prime_p2p.network.node import Node

log = logging.getLogger(__name__)

LOOK_EVERY = 10.0  # seconds between two looks at our own addresses
LOOK_AGAIN = 1.0  # seconds to the next look where something is to be expected sooner
ASK_EVERY = 600.0  # seconds after which others are asked again, though nothing has changed
ASK_AGAIN = 60.0  # seconds after which others are asked again at the latest, where none of them was of use
ASK_FOR_RELAYS = 60.0  # seconds after which a relay is looked for again where there was none
ANSWER = 10.0  # seconds for the answers of others
MOST_RELAYS = 3
MOST_TOLD = 8  # addresses
ASKED_FOR_RELAYS = 16  # peers

_ANY = {"ip4": "0.0.0.0", "ip6": "::"}
_ADVICE = "cannot be reached from outside ({}): forward it in your router, or give --announce; "


class Reachability:
    """Finds out whether others can dial this node, and has relays carry what they send where they cannot.

    `on_change` is called with the node's addresses when these are others than before. With `relayed` nobody is asked:
    relays it is.
    """

    def __init__(
        self, node: Node, dial_back: DialBack, on_change: Callable[[list[str]], None], relayed: bool = False
    ) -> None:
        self._node = node
        self._dial_back = dial_back
        self._on_change = on_change
        self._relayed = relayed
        self._announced = node.daemon_config.announce  # by the user
        self._addresses: list[str] = []
        self._relays: dict[str, str] = {}  # those we tell others of: peer id -> address
        self._served = False  # whether one of them has a slot for us
        self._due = 0.0  # when others are to be asked, in the loop's time
        self._failures = 0  # in a row
        self._useless = 0  # times in a row that nobody could be asked
        self._advised = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; it ends with the node. One that listens on loopback alone is left as it is."""
        if not self._node.daemon_config.loopback:
            self._task = asyncio.ensure_future(self._keep())
            self._node.closes(self._close)

    async def _close(self) -> None:
        if self._task is not None:
            await tasks.end([self._task])

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        while await self._node.back():
            before = self._node.daemon_config
            try:
                await self._look()
            except DaemonError as error:
                log.debug("the libp2p daemon does not say where it is: %s", error)
            except Exception:
                log.exception("cannot find out whether others reach this node; trying again")
            due = self._due - loop.time() if self._node.daemon_config is before else 0.0
            await asyncio.sleep(min(LOOK_EVERY, max(LOOK_AGAIN, due)))

    async def _look(self) -> None:
        """Look whether something has changed or is to be asked."""
        addresses = await self._node.addresses()
        now = asyncio.get_running_loop().time()
        if addresses != self._addresses:
            if set(filter(_is_direct, addresses)) != set(filter(_is_direct, self._addresses)):
                self._due = now
            self._addresses = addresses
            self._on_change(addresses)
        if self._relays:
            served, self._served = self._served, await self._keep_slots()
            if served and not self._served:
                self._due = min(self._due, now + ASK_FOR_RELAYS)  # unless it is back by then
        if now < self._due:
            return
        if self._relayed:
            self._due = now + ASK_EVERY
            await self._be_relayed("", set())
            return
        reaches = await self._dial_back.ask(self._questions(), ANSWER)
        works = verdict(reaches)
        if works is None:  # nobody is there to ask, or what they said is of no use
            self._useless += 1
            self._due = now + min(ASK_AGAIN, LOOK_AGAIN * 2 ** min(self._useless, 6))
            return
        self._useless = 0
        self._failures = 0 if works else self._failures + 1
        self._due = now + (0.0 if self._failures == 1 else ASK_EVERY)  # what failed once is tried again first
        if works:
            await self._be_dialled([_plain(reach.address) for reach in reaches if reach.works])
        elif self._failures > 1:
            failed = {_plain(reach.address): reach.reason for reach in reaches if reach.reason not in ("", NOT_YOURS)}
            await self._be_relayed(next(iter(failed.values())), failed.keys())

    def _questions(self) -> list[str]:
        """The addresses to ask others for."""
        if self._announced:
            return [address for address in self._announced if "/tcp/" in address][:MOST_ADDRESSES]
        return questions(self._node.daemon_config.listen, self._addresses)

    async def _be_dialled(self, works: Sequence[str]) -> None:
        """Others reach us at these addresses: see to it that we tell them so."""
        config = self._node.daemon_config
        own = [_plain(address) for address in self._addresses if _is_direct(address)]
        learnt = [address for address in works if address not in own and not _is_loopback(address)]
        if config.private:
            log.warning("%s can be reached from outside now", works[0])
            self._advised, self._served, self._relays = False, False, {}
            await self._node.reconfigure(private=False, announce=self._announced)
        elif learnt and not self._announced:
            await self._node.reconfigure(announce=announcement(learnt, own))

    async def _be_relayed(self, reason: str, failed: Collection[str]) -> None:
        """Others do not reach us, for this reason and at these addresses: have relays do, and say so once."""
        if self._served:
            return
        relays = await self._find_relays()
        if not self._advised and not self._relayed:
            self._advised = True
            what = ", ".join(self._announced) or f"TCP port {_port(self._node.daemon_config.listen[0])} of this machine"
            then = "going through relays until then" if relays else "no relay is there, so only those it dials meet it"
            log.warning("%s %s%s", what, _ADVICE.format(reason), then)
        if not relays:
            self._due = asyncio.get_running_loop().time() + ASK_FOR_RELAYS
        elif relays != self._relays:
            self._relays = relays
            own = self._announced or [_plain(address) for address in self._addresses if _is_direct(address)]
            told = [f"{address}/p2p-circuit" for address in relays.values()]
            told += [address for address in own if address not in failed and not _is_loopback(address)]
            if await self._node.reconfigure(private=True, announce=tuple(told)):
                self._served = await self._keep_slots()

    async def _find_relays(self) -> dict[str, str]:
        """The peers that relay, of those that this node has a connection of its own to, and where."""
        ends = await self._node.connections()
        peers = [peer for peer, theirs in ends.items() if direct(theirs)][:ASKED_FOR_RELAYS]
        found = await asyncio.gather(*map(self._node.relay_address, peers))
        relays = sorted((peer, address) for peer, address in zip(peers, found, strict=True) if address)
        return dict(relays[:MOST_RELAYS])

    async def _keep_slots(self) -> bool:
        """Ask our relays for the slots they may have given up, as they do when a connection breaks."""
        slots = await asyncio.gather(*map(self._node.relay_address, self._relays))
        return any(slots)


def questions(listen: Iterable[str], own: Iterable[str]) -> list[str]:
    """What to ask others for: our ports wherever they see this machine, and what a router may have mapped to them."""
    asked = [
        f"/{_kind(address)}/{_ANY[_kind(address)]}/tcp/{_port(address)}" for address in listen if "/tcp/" in address
    ]
    mapped = [_plain(address) for address in own if _is_direct(address) and _is_outside(address)]
    return list(dict.fromkeys([*asked, *(address for address in mapped if "/tcp/" in address)]))[:MOST_ADDRESSES]


def verdict(reaches: Iterable[Reach]) -> bool | None:
    """Whether others can dial this node; None where nothing was tried.

    Where there is somebody in the internet to ask, what neighbours in a local network say does not count.
    """
    tried = [reach for reach in reaches if reach.reason != NOT_YOURS]
    outside = [reach for reach in tried if _is_outside(reach.address)]
    return any(reach.works for reach in outside or tried) if tried else None


def announcement(learnt: Sequence[str], own: Iterable[str]) -> tuple[str, ...]:
    """The addresses to tell others where some were learnt: those first, since they work, and our own ones."""
    return (*learnt, *(address for address in own if not _is_loopback(address)))[:MOST_TOLD]


def _plain(address: str) -> str:
    return address.partition("/p2p/")[0]


def _kind(address: str) -> str:
    return address.split("/")[1]


def _port(address: str) -> str:
    return address.split("/")[4]


def _is_direct(address: str) -> bool:
    return not _is_relayed(address)


def _is_relayed(address: str) -> bool:
    return "/p2p-circuit" in address


def _is_outside(address: str) -> bool:
    ip = ip_of(address)
    return ip is None or ip.is_global


def _is_loopback(address: str) -> bool:
    ip = ip_of(address)
    return ip is not None and ip.is_loopback
