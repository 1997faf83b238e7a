"""A peer's part in a public run: it goes by the newest manifest, keeps it alive, and admits whom it says."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from prime_p2p.errors import BadInput, PrimeError
from prime_p2p.network import clock, tasks
from prime_p2p.network.deadline import within
from prime_p2p.public import manifest_records
from prime_p2p.public.admission import Admission, Invitation, invited_until
from prime_p2p.public.manifest import BadManifest, SignedManifest, check_version
from prime_p2p.recipe import Recipe
from prime_p2p.swarm.membership import Heartbeat
from prime_p2p.swarm.swarm import Swarm
from prime_p2p.terms import Change, Course, Terms

logger = logging.getLogger(__name__)

FILE_NAME = "manifest.msgpack"  # in a peer's folder
DATA = "data"  # the folder there in which an author may name files: beside it are the peer's key and its other files
LOOK_EVERY = 10.0  # seconds between two looks for a newer manifest where nobody speaks of one
LOOK_GAP = 3.0  # seconds between two looks where somebody does
KEEP_EVERY = 300.0  # seconds between two looks at who keeps the manifest
KEPT_FOR = 3600.0  # seconds that the DHT keeps what a peer has put there, unless it is put there again
MOST_SHOWN = 1024  # peers whose credentials are remembered, worth something or not
COPIES = 8  # other peers that keep it, where we need not
DHT_DEADLINE = 20.0  # seconds for one look or one put


class Door:
    """Who is admitted by the manifest, as far as heartbeats have shown."""

    def __init__(self, run: str, author: str, admission: Admission) -> None:
        self._run = run
        self._author = author
        self.admission = admission
        self._invited: dict[str, tuple[bytes, float]] = {}  # peer -> what it showed, and until when that holds

    def admits(self, peer: str, credential: bytes) -> bool:
        """Whether a peer that shows this is admitted."""
        if credential and self._invited.get(peer, (b"", 0.0))[0] != credential:  # whatever the rule: it may change
            until = invited_until(credential, self._run, self._author, peer) or 0.0
            self._invited.pop(peer, None)
            self._invited[peer] = credential, until
            if len(self._invited) > MOST_SHOWN:
                del self._invited[next(iter(self._invited))]
        return self.lets_in(peer)

    def lets_in(self, peer: str) -> bool:
        """The same by what the peer has shown so far."""
        if peer in self.admission.banned:
            return False
        if self.admission.rule == "allow":
            return peer in self.admission.peers
        if self.admission.rule == "token":
            return self._invited.get(peer, (b"", 0.0))[1] > clock.now()
        return True


def _with_our_own(recipe: Recipe, overrides: Sequence[str], changes: Sequence[Change]) -> Terms:
    """The terms of a run, with this peer's own values. Raises BadInput for one that all peers must agree on."""
    ours = recipe
    for override in overrides:
        ours = ours.with_overrides([override])
        if ours.shared() != recipe.shared():
            raise BadInput(f"--set {override}: is for the author of the run to choose, the same for all of its peers")
    return Terms(ours, changes)


class PublicRun:
    """What a peer does for its run beside training. ``terms`` follow the manifest; they are for any thread."""

    def __init__(
        self,
        signed: SignedManifest,
        directory: Path,
        invitation: Invitation | None = None,
        overrides: Sequence[str] = (),
    ) -> None:
        """``overrides`` are this peer's own values of the recipe, as in ``Recipe.load``.

        Raises BadInput where this program is not made for the run, the invitation is for another one, or a value is
        for the author to choose.
        """
        check_version(signed.manifest)
        self.signed = signed
        self.terms = _with_our_own(signed.manifest.terms.base, overrides, signed.manifest.made_changes)
        self._path = directory / FILE_NAME
        self._invitation = invitation
        self._door = Door(signed.manifest.run, signed.manifest.author, signed.manifest.admission)
        self._news = asyncio.Event()
        self._adopted = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def course(self) -> Course:
        """What the peer is to do."""
        return Course(self.terms, self.signed.manifest.initial_state, self._path.parent / DATA)

    # ---- the guard of the swarm

    def admits(self, peer: str, beat: Heartbeat) -> bool:
        return self._door.admits(peer, beat.credential)

    def lets_in(self, peer: str) -> bool:
        return self._door.lets_in(peer)

    def looked(self, others: Mapping[str, Heartbeat]) -> None:
        if any(beat.manifest > self.signed.seal.sequence for beat in others.values()):
            self._news.set()

    # ---- its life

    def attach(self, swarm: Swarm) -> None:
        """Take part with this swarm, until it is closed. Raises BadInput where we are not admitted."""
        credential = self._invitation.credential(swarm.peer_id) if self._invitation else b""
        self._check_admitted(swarm.peer_id, credential)
        write(self.signed, self._path)
        swarm.guard(self, manifest=self.signed.seal.sequence, credential=credential)
        swarm.call(self._start(swarm))

    def _check_admitted(self, peer_id: str, credential: bytes) -> None:
        run, rule = self.signed.manifest.name, self._door.admission.rule
        if self._door.admits(peer_id, credential):
            return
        if peer_id in self._door.admission.banned:
            raise BadInput(f"peer {peer_id} is banned from run {run} by its author")
        if rule == "allow":
            raise BadInput(
                f"run {run} admits only peers that its author has listed; tell the author this id: {peer_id}"
            )
        if not credential:
            raise BadInput(
                f"run {run} admits who is invited: ask its author for an invitation, and give it with --token"
            )
        raise BadInput(f"the invitation is for another run than {run}, or has expired; ask its author for a new one")

    async def _start(self, swarm: Swarm) -> None:
        self._tasks = [asyncio.create_task(self._follow(swarm)), asyncio.create_task(self._keep(swarm))]
        swarm.node.closes(self._close)

    async def _close(self) -> None:
        await tasks.end(self._tasks)

    async def _follow(self, swarm: Swarm) -> None:
        """Look for newer manifests, at once where the heartbeats of others speak of one."""
        while True:
            with suppress(asyncio.TimeoutError):
                await within(LOOK_EVERY, self._news.wait())
            self._news.clear()
            run, ours = self.signed.manifest.run, self.signed.seal
            try:
                newer = await within(DHT_DEADLINE, manifest_records.newest(swarm.node, run, ours))
                if newer is not None:
                    await self._adopt(newer, swarm)
            except (asyncio.TimeoutError, PrimeError) as error:
                logger.warning("no look at the manifest of run %s: %s", run, str(error) or "no answer")
            except Exception:
                logger.exception("the manifest of run %s cannot be followed; trying again", run)
            self._check_still_admitted(swarm.peer_id)
            await asyncio.sleep(LOOK_GAP)

    def _check_still_admitted(self, peer_id: str) -> None:
        if self._door.lets_in(peer_id):
            return
        why = "admits this peer no more"
        if self._door.admission.rule == "token" and peer_id not in self._door.admission.banned:
            why = "asks for an invitation, and this peer has none that holds; go on with --token"
        self.terms.refuse(BadInput(f"the author of run {self.signed.manifest.name} {why}"))

    async def _adopt(self, newer: SignedManifest, swarm: Swarm) -> None:
        """Go by a newer manifest, all of it or none."""
        try:
            check_version(newer.manifest)
        except BadInput as error:
            self.terms.refuse(error)
            return
        if newer.manifest.fixed != self.signed.manifest.fixed:
            self.terms.refuse(BadInput(f"the author of run {newer.manifest.name} has made another run of it"))
            return
        self.terms.replace(newer.manifest.made_changes)
        self.signed = newer
        self._door.admission = newer.manifest.admission
        self._check_still_admitted(swarm.peer_id)
        logger.warning("run %s goes by manifest %d of its author now", newer.manifest.name, newer.seal.sequence)
        await asyncio.to_thread(write, newer, self._path)
        self._adopted.set()
        await swarm.announce(manifest=newer.seal.sequence)

    async def _keep(self, swarm: Swarm) -> None:
        """Put the manifest into the DHT again and again, where few others do."""
        while True:
            self._adopted.clear()
            try:
                await within(DHT_DEADLINE, self._keep_once(swarm, self.signed))
            except (asyncio.TimeoutError, PrimeError) as error:
                logger.info("the manifest could not be kept this time: %s", str(error) or "no answer")
            except Exception:
                logger.exception("the manifest cannot be kept; trying again")
            with suppress(asyncio.TimeoutError):
                await within(KEEP_EVERY * random.uniform(0.8, 1.0), self._adopted.wait())

    async def _keep_once(self, swarm: Swarm, signed: SignedManifest) -> None:
        seals = await manifest_records.kept_by(swarm.node, signed.manifest.run)
        others = sum(seal == signed.seal for peer, seal in seals.items() if peer != swarm.peer_id)
        if random.random() < COPIES / (others + 1):
            await manifest_records.put(swarm.node, signed, KEPT_FOR)


def write(signed: SignedManifest, path: Path) -> None:
    """Keep a manifest in a file; where that fails, the log says so."""
    partial = path.with_suffix(".partial")
    try:
        partial.write_bytes(signed.to_bytes())
        os.replace(partial, path)
    except OSError as error:
        logger.warning("the manifest could not be written to %s: %s", path, error.strerror)


def load(directory: Path, run: str | None = None) -> SignedManifest | None:
    """The manifest that a peer has kept in its folder, or None where there is none.

    Raises BadInput where it is one of another run than ``run``.
    """
    kept = kept_in(directory / FILE_NAME)
    if kept is not None and run not in (None, kept.manifest.run):
        raise BadInput(
            f"folder {directory} is that of a peer of another run, {kept.manifest.name} by {kept.manifest.author}; "
            "give this one another folder with --dir"
        )
    return kept


def kept_in(path: Path, run: str | None = None) -> SignedManifest | None:
    """The manifest in a file, of ``run`` where one is named; None where there is none."""
    try:
        return SignedManifest.from_bytes(path.read_bytes(), run)
    except FileNotFoundError:
        return None
    except (OSError, BadManifest) as error:
        logger.warning("%s is of no use: %s", path, error)
        return None
