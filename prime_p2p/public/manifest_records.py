"""Where manifests are kept: in the DHT, cut to the size of its records, under the name of whoever put them there.

Who it was does not matter: the seal is the author's. So every peer of a run can keep its manifest alive.
"""

from __future__ import annotations

import asyncio
import logging

from blake3 import blake3

from prime_p2p.network.node import Node
from prime_p2p.network.records import MAX_TTL
from prime_p2p.public.manifest import BadManifest, Seal, SignedManifest, parts_of

logger = logging.getLogger(__name__)

TRIED = 4  # sealed manifests at most that are fetched to find the newest one that is whole


def _key(run: str) -> str:
    return f"manifest/{run}"


def _part_key(part: bytes) -> str:
    """Of the part with this hash."""
    return f"manifest-part/{part.hex()}"


async def put(node: Node, signed: SignedManifest, ttl: float = MAX_TTL) -> bool:
    """Keep a manifest in the DHT for ``ttl`` seconds; returns whether other peers have taken all of it."""
    parts = zip(signed.seal.parts, parts_of(signed.body), strict=True)
    taken = await asyncio.gather(*(node.publish(_part_key(name), {"part": part}, ttl) for name, part in parts))
    return await node.publish(_key(signed.manifest.run), signed.seal.to_fields(), ttl) and all(taken)


async def kept_by(node: Node, run: str) -> dict[str, Seal]:
    """Who keeps a manifest of the run in the DHT: peer id -> its seal, which is the author's."""
    found = {peer: Seal.from_fields(fields, run) for peer, fields in (await node.lookup(_key(run))).items()}
    return {peer: seal for peer, seal in found.items() if seal is not None}


async def newest(node: Node, run: str, newer_than: Seal | None = None) -> SignedManifest | None:
    """The newest manifest of the run that is whole, or None where there is none ``newer_than`` that of this seal."""
    seals = {
        seal for seal in (await kept_by(node, run)).values() if newer_than is None or seal.order > newer_than.order
    }
    for seal in sorted(seals, key=lambda seal: seal.order, reverse=True)[:TRIED]:
        parts = await asyncio.gather(*(_part(node, name) for name in seal.parts))
        try:
            return SignedManifest.opened(b"".join(part for part in parts if part is not None), seal, run)
        except BadManifest as reason:
            logger.warning("manifest %d of run %s is of no use: %s", seal.sequence, run, reason)
    return None


async def _part(node: Node, name: bytes) -> bytes | None:
    """The part with this hash, which anybody may have put there; None where nobody has."""
    for value in (await node.lookup(_part_key(name))).values():
        part = value.get("part")
        if isinstance(part, bytes) and blake3(part).digest() == name:
            return part
    return None
