"""The peers that this one has met, in a file: it finds the swarm again where every bootstrap address is dead."""

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prime_p2p.network import tasks
from prime_p2p.network._hivemind import Multiaddr
from prime_p2p.network.identity import is_peer_id

log = logging.getLogger(__name__)

MOST_PEERS = 64
MOST_ADDRESSES = 8  # of a peer
WRITE_EVERY = 30.0  # seconds
_LONGEST = 256 * 1024  # bytes of a file that is read

Contacts = Mapping[str, tuple[list[str], float]]
"""Peer id -> the multiaddrs that it listens on, and how many seconds ago it was there."""


class _Peer(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    addresses: Annotated[list[Annotated[str, Field(max_length=400)]], Field(min_length=1, max_length=MOST_ADDRESSES)]
    seen: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """In unix seconds."""


class _Peers(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    peers: Annotated[dict[str, _Peer], Field(max_length=MOST_PEERS)]


class KnownPeers:
    """The file. One that is damaged, or cannot be written, is said in one line and otherwise as if there were none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._peers = self._read()
        self._writable = True
        self._task: asyncio.Task[None] | None = None

    def addresses(self) -> dict[str, list[str]]:
        """Where the peers that were there before listened, by peer id; those seen last come first."""
        return {peer: known.addresses for peer, known in self._peers.items()}

    def keep(self, contacts: Callable[[], Contacts]) -> None:
        """Write down the peers that `contacts` returns from time to time, until `close`."""
        self._contacts = contacts
        self._task = asyncio.ensure_future(self._keep())

    async def close(self) -> None:
        """Write them down once more and stop. May be called again."""
        task, self._task = self._task, None
        if task is not None:
            await tasks.end([task])
            self._write()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(WRITE_EVERY)
            self._write()

    def _read(self) -> dict[str, _Peer]:
        try:
            with self._path.open("rb") as file:
                data = file.read(_LONGEST + 1)
        except FileNotFoundError:
            return {}
        except OSError as error:
            log.warning("%s, the list of peers met before, cannot be read: %s", self._path, error.strerror)
            return {}
        try:
            if len(data) > _LONGEST:
                raise ValueError("too long")
            peers = _Peers.model_validate(json.loads(data)).peers
            for peer_id, known in peers.items():
                _check(peer_id, known)
        except (ValueError, LookupError, RecursionError, ValidationError):
            log.warning("%s, the list of peers met before, is damaged; going on without it", self._path)
            return {}
        return dict(sorted(peers.items(), key=lambda item: -item[1].seen))

    def _write(self) -> None:
        now = time.time()
        met = {
            peer_id: _Peer(addresses=addresses[:MOST_ADDRESSES], seen=now - age)
            for peer_id, (addresses, age) in self._contacts().items()
            if addresses
        }
        newest = sorted((self._peers | met).items(), key=lambda item: -item[1].seen)[:MOST_PEERS]
        if dict(newest) == self._peers:
            return
        self._peers = dict(newest)
        temporary = self._path.with_name(f".{self._path.name}.new")
        try:
            temporary.write_text(_Peers(peers=self._peers).model_dump_json(indent=1), encoding="utf-8")
            os.replace(temporary, self._path)
        except OSError as error:
            if self._writable:
                log.warning("%s, the list of peers met before, cannot be written: %s", self._path, error.strerror)
            self._writable = False
            with suppress(OSError):
                temporary.unlink()
        else:
            self._writable = True


def _check(peer_id: str, known: _Peer) -> None:
    """Raise ValueError or LookupError where these can be no peer's id and addresses."""
    if not is_peer_id(peer_id):
        raise ValueError("no peer id")
    for address in known.addresses:
        Multiaddr(address)
