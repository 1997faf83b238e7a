"""What the author of a public run does: begin it, change it, invite to it and ban from it."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from prime_p2p.agreement import first_difference
from prime_p2p.errors import BadInput, PrimeError, Unreachable
from prime_p2p.network import clock
from prime_p2p.network.identity import Identity
from prime_p2p.network.node import Node
from prime_p2p.network.records import MAX_TTL
from prime_p2p.network.visit import on_a_node
from prime_p2p.public import manifest_records, notice, peer_ids
from prime_p2p.public.admission import Admission
from prime_p2p.public.manifest import ChangeEntry, Manifest, SignedManifest, check_signable
from prime_p2p.public.public_run import Door, kept_in, write
from prime_p2p.public.run_address import RunAddress, fingerprint
from prime_p2p.recipe import Recipe
from prime_p2p.swarm import membership
from prime_p2p.swarm.membership import Heartbeat
from prime_p2p.terms import Phase, Terms, differences, recipe_with

FASTEST = 0.1  # seconds between two outer steps that are believed


@dataclass(frozen=True)
class Wish:
    """What the author wants of the run from now on; None leaves it as it is.

    ``sets`` are "section.key=value" for the recipe, or for the one of the run. ``at`` is the outer step from which a
    changed recipe or phase holds, and ``notice`` the seconds that peers have at least until they come to it. ``admit``
    and ``ban`` are peers to add to the lists of the manifest, ``pardon`` those to take off the second: ids, or ends of
    the ids of those who are in the run.
    """

    recipe: Recipe | None = None
    sets: Sequence[str] = ()
    at: int | None = None
    notice: float = notice.SECONDS
    phase: Phase | None = None
    minimum_version: str | None = None
    rule: str | None = None
    admit: Sequence[str] = ()
    ban: Sequence[str] = ()
    pardon: Sequence[str] = ()
    bootstraps: Sequence[str] = ()


@dataclass(frozen=True)
class Progress:
    """Where the peers of a run are: the outer step, and the seconds from one to the next (0: not known)."""

    step: int = 0
    pace: float = 0.0

    @classmethod
    def of(cls, beats: Sequence[Heartbeat]) -> Progress:
        """What most peers say: any of them may say anything."""
        paces = [max(beat.pace, FASTEST) for beat in beats if beat.pace > 0]
        steps = [beat.step for beat in beats]
        return cls(statistics.median_high(steps or [0]), statistics.median_low(paces or [0.0]))


@dataclass(frozen=True)
class Published:
    """What came of it; ``before`` is None where the run is a new one."""

    address: RunAddress
    signed: SignedManifest
    before: Manifest | None


def publish(
    name: str, author: Identity, bootstrap: Sequence[str], wish: Wish, initial_state: Callable[[Recipe], bytes]
) -> Published:
    """Sign a manifest of the run and keep it in the DHT: the first one, or one that follows the one that is there.

    ``initial_state`` gives the digest of the state that a new run begins with; it may take a while.
    Raises BadInput where the wish cannot be granted, Unreachable where nobody takes the manifest.
    """
    address = RunAddress(bootstrap[0], name, fingerprint(author.peer_id))
    kept = kept_in(_kept_at(name, author), address.run)

    async def change(node: Node) -> Published | None:
        """In the same visit as the look at where the run is: the notice runs from that moment."""
        seen = await _seen(address.run, node)
        found = max(filter(None, (seen.signed, kept)), key=lambda one: one.seal.order, default=None)
        if found is None:
            return None
        before = found.manifest
        wanted = _with_whole_ids(wish, {*seen.peers, *before.admission.banned})
        signed = _signed(following(before, wanted, seen.progress), author)
        await _put(signed, node)
        return Published(address, signed, before)

    published = on_a_node(bootstrap, change)
    if published is None:
        if wish.recipe is None:
            raise BadInput(f"no manifest of run {name} by this key is known there; publish its recipe first")
        recipe = wish.recipe.with_overrides(wish.sets)
        new = replace(wish, recipe=recipe, sets=(), bootstraps=wish.bootstraps or bootstrap)
        signed = _signed(first(name, author, _with_whole_ids(new, ()), initial_state(recipe)), author)
        on_a_node(bootstrap, partial(_put, signed))
        published = Published(address, signed, None)
    write(published.signed, _kept_at(name, author))
    return published


def _kept_at(name: str, author: Identity) -> Path:
    return author.path.with_name(f"{name}.manifest")


def _signed(manifest: Manifest, author: Identity) -> SignedManifest:
    """Signed, unless it is one that nobody could go by. Raises BadInput."""
    check_signable(manifest)
    signed = SignedManifest.sign(manifest, author)
    return SignedManifest.opened(signed.body, signed.seal, manifest.run)


@dataclass(frozen=True)
class _Seen:
    """What there is of a run: its newest manifest, where those are that it admits, and who is there at all."""

    signed: SignedManifest | None
    progress: Progress
    peers: Collection[str]


async def _seen(run: str, node: Node) -> _Seen:
    newest, beats = await manifest_records.newest(node, run), await membership.heartbeats(node, run)
    if newest is None:
        return _Seen(None, Progress(), beats.keys())
    door = Door(run, newest.manifest.author, newest.manifest.admission)
    admitted = [beat for peer, beat in beats.items() if beat.has_state and door.admits(peer, beat.credential)]
    return _Seen(newest, Progress.of(admitted), beats.keys())


def _with_whole_ids(wish: Wish, seen: Collection[str]) -> Wish:
    """The wish with whole ids of peers where it has the ends of some that were seen. Raises BadInput."""
    admit, ban, pardon = ([peer_ids.whole(one, seen) for one in ids] for ids in (wish.admit, wish.ban, wish.pardon))
    return replace(wish, admit=admit, ban=ban, pardon=pardon)


async def _put(signed: SignedManifest, node: Node) -> None:
    taken = await manifest_records.put(node, signed)
    await node.publish(membership.RUNS, {"run": signed.manifest.run}, ttl=MAX_TTL)
    if not taken:
        raise Unreachable("nobody there takes the manifest; try again, or give another --bootstrap")
    seals = (await manifest_records.kept_by(node, signed.manifest.run)).values()
    if any(seal.sequence == signed.seal.sequence and seal != signed.seal for seal in seals):
        raise PrimeError(
            f"another manifest {signed.seal.sequence} was published at the same moment: peers go by one of the two; "
            "publish what you want once more"
        )


def first(name: str, author: Identity, wish: Wish, initial_state: bytes) -> Manifest:
    """The first manifest of a run."""
    assert wish.recipe is not None
    recipe = recipe_with(wish.recipe, {"run.name": name, "run.start": "anyone"})
    changes = [ChangeEntry(at=wish.at or 0, phase=wish.phase)] if wish.phase else []
    return Manifest(
        name=name,
        author=author.peer_id,
        sequence=1,
        issued_at=time.time(),
        minimum_version=wish.minimum_version or "0",
        recipe=recipe.model_dump(mode="json"),
        initial_state=initial_state,
        bootstraps=list(wish.bootstraps),
        admission=admission(Admission(), wish),
        changes=changes,
    )


def following(before: Manifest, wish: Wish, progress: Progress) -> Manifest:
    """The manifest after ``before``, for a run whose peers have come so far.

    A pause or an end that has not come yet gives way to a new wish; one that has come is ended where everybody waits.
    Raises BadInput where the recipe changes in what cannot change, or not all peers would hear of a change in time.
    """
    changes = list(before.changes) if wish.phase is None else _without_pending_phases(before.changes, progress.step)
    terms = Terms(before.terms.base, [entry.made for entry in changes])
    waiting = terms.phase_at(progress.step) == "pause"
    if waiting:
        at = max(entry.at for entry in changes if entry.at <= progress.step)  # where everybody waits
    elif wish.recipe is not None or wish.sets or wish.phase in ("pause", "end"):
        at = _from_when(wish, progress)
    else:
        at = progress.step
    standing = terms.recipe_at(at)
    values = _changed(before, standing, (wish.recipe or standing).with_overrides(wish.sets))
    phase = wish.phase or terms.phase_at(at)
    if values or phase != terms.phase_at(at):
        changes.append(ChangeEntry(at=at, values=values, phase=phase))
    return before.model_copy(
        update={
            "sequence": before.sequence + 1,
            "issued_at": time.time(),
            "minimum_version": wish.minimum_version or before.minimum_version,
            "bootstraps": list(wish.bootstraps) or before.bootstraps,
            "admission": admission(before.admission, wish),
            "changes": sorted(changes, key=lambda entry: entry.at),  # of two at one step the later one counts
        }
    )


def _without_pending_phases(changes: Sequence[ChangeEntry], step: int) -> list[ChangeEntry]:
    """The changes without the pauses and ends that nobody has come to; their other values stay."""
    kept = []
    for entry in changes:
        if entry.at <= step or entry.phase == "train":
            kept.append(entry)
        elif entry.values:
            kept.append(entry.model_copy(update={"phase": "train"}))
    return kept


def _from_when(wish: Wish, progress: Progress) -> int:
    """The outer step from which a change holds: one that nobody reaches before everybody has heard of it."""
    if not progress.pace:
        if wish.at is None:
            raise BadInput(
                "no peer says how fast the run goes (nobody is there, or has just begun): give the outer step from "
                "which the change is to hold, with --at, or try again later"
            )
        return wish.at
    first = progress.step + max(notice.OUTER_STEPS, math.ceil(wish.notice / progress.pace))
    if wish.at is not None and wish.at < first:
        raise BadInput(
            f"--at {wish.at}: the run is at outer step {progress.step}, and not every peer would hear of it in time; "
            f"leave --at out, or give {first} or more"
        )
    return first if wish.at is None else wish.at


def _changed(before: Manifest, standing: Recipe, wanted: Recipe) -> dict[str, object]:
    wanted = recipe_with(wanted, {"run.name": before.name, "run.start": standing.run.start})
    values = differences(standing, wanted)
    difference = first_difference(recipe_with(standing, values).shared(), wanted.shared())
    if difference is not None:
        raise BadInput(
            f"run {before.name} cannot change in this way while it goes on, publish another one under another name: "
            f"{difference.replace(' here, ', ' in the run, ').replace(' there', ' in the recipe')}"
        )
    return values


def admission(before: Admission, wish: Wish) -> Admission:
    """Who is admitted from now on."""
    peers = list(dict.fromkeys([*before.peers, *wish.admit]))
    banned = [peer for peer in dict.fromkeys([*before.banned, *wish.ban]) if peer not in wish.pardon]
    return Admission.model_validate({"rule": wish.rule or before.rule, "peers": peers, "banned": banned})


def expiry(text: str) -> float:
    """When (unix seconds) something ends that lasts so long from now: "90m", "12h", "7d". Raises BadInput."""
    unit = {"m": 60.0, "h": 3600.0, "d": 86400.0}.get(text[-1:])
    try:
        count = float(text[:-1])
    except ValueError:
        count = 0.0
    if unit is None or not 0 < count * (unit or 0.0) <= 3650 * 86400.0:
        raise BadInput(f"{text!r} is no time from now; give minutes, hours or days as 90m, 12h or 7d")
    return clock.now() + count * unit


def author_of(path: Path) -> Identity:
    """The key of a run's author. Raises BadInput where there is none."""
    if not path.exists():
        raise BadInput(f"author key {path}: no such file; give the one that the run was published with")
    return Identity.load_or_create(path)
