"""The manifest of a public run: what its author says the run is, signed.

Peers take it from anybody, because it proves itself: the run's address has the fingerprint of the author's key, the
author signs the hash of the manifest, and of two manifests the one with the larger sequence number counts.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgpack
from blake3 import blake3
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prime_p2p.errors import BadInput, PrimeError
from prime_p2p.network.identity import Identity, verify
from prime_p2p.network.version import PROTOCOL
from prime_p2p.public.admission import Admission, PeerId
from prime_p2p.public.run_address import fingerprint, run_id
from prime_p2p.recipe import BYTES, HUB, RUN_NAME, STDLIB, Recipe
from prime_p2p.terms import CHANGEABLE, Change, Phase, Terms

PART = 3072  # bytes of a manifest in one record of the DHT
MAX_PARTS = 32
MAX_CHANGES = 256
_NAME_ON_THE_HUB = re.compile(HUB + r"(?!\.)[\w.-]+(/(?!\.)[\w.-]+)?(@(?!\.)[\w.-]+)?", re.ASCII)
_SEALED = b"prime-p2p manifest 1\0"


class BadManifest(PrimeError):
    """Bytes that are no manifest of the author they are said to be of."""


class ChangeEntry(BaseModel):
    """``terms.Change`` as it travels."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    at: Annotated[int, Field(ge=0, lt=2**63)]
    values: Annotated[dict[str, Any], Field(max_length=32)] = {}
    phase: Phase = "train"

    @property
    def made(self) -> Change:
        return Change(self.at, self.values, self.phase)


class Manifest(BaseModel):
    """What a run is. ``recipe`` is a whole one, as ``Recipe.model_dump`` gives it, from outer step 0 on.

    ``author`` is the peer id of the author's key, ``initial_state`` the digest of the state the run begins with,
    ``minimum_version`` that of this package, and ``bootstraps`` are more addresses to find the run by.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=RUN_NAME)]
    author: PeerId
    sequence: Annotated[int, Field(ge=1, lt=2**53)]
    issued_at: Annotated[float, Field(ge=0, lt=2**53)]
    protocol: Annotated[int, Field(ge=1, lt=2**31)] = PROTOCOL
    minimum_version: Annotated[str, Field(max_length=32)] = "0"
    recipe: dict[str, Any]
    initial_state: Annotated[bytes, Field(min_length=32, max_length=32)]
    bootstraps: Annotated[list[Annotated[str, Field(max_length=256)]], Field(max_length=8)] = []
    admission: Admission = Admission()
    changes: Annotated[list[ChangeEntry], Field(max_length=MAX_CHANGES)] = []

    @property
    def run(self) -> str:
        """What the run is called among its peers."""
        return run_id(self.name, fingerprint(self.author))

    @property
    def terms(self) -> Terms:
        """The recipe by outer step. Raises BadInput where there is none: ``opened`` has made sure that there is."""
        return Terms(Recipe.from_table(self.recipe, "the manifest"), self.made_changes)

    @property
    def made_changes(self) -> list[Change]:
        return [entry.made for entry in self.changes]

    @property
    def fixed(self) -> tuple[object, ...]:
        """What no later manifest of the run may have otherwise."""
        return self.recipe, self.initial_state, self.protocol


@dataclass(frozen=True)
class Seal:
    """The author's word on a manifest, by the hashes of its parts: enough to tell whether it is worth being fetched,
    and to tell right parts from wrong ones."""

    author: str
    sequence: int
    parts: tuple[bytes, ...]
    signature: bytes

    @classmethod
    def of(cls, body: bytes, manifest: Manifest, author: Identity) -> Seal:
        parts = tuple(blake3(part).digest() for part in parts_of(body))
        signature = author.sign(_to_sign(manifest.run, manifest.sequence, parts))
        return cls(manifest.author, manifest.sequence, parts, signature)

    @property
    def order(self) -> tuple[int, tuple[bytes, ...]]:
        """Of two manifests the one with the larger counts, at every peer."""
        return self.sequence, self.parts

    def to_fields(self) -> dict[str, Any]:
        return vars(self) | {"parts": list(self.parts)}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], run: str) -> Seal | None:
        """The seal of a manifest of ``run`` in fields that anybody may have written; None where it is none."""
        match fields:
            case {
                "author": str(author),
                "sequence": int(sequence),
                "parts": list(listed),
                "signature": bytes(signature),
                **rest,
            } if not rest and len(author) <= 64 and 0 < sequence < 2**53 and 0 < len(listed) <= MAX_PARTS:
                parts = tuple(part for part in listed if isinstance(part, bytes) and len(part) == 32)
                of_the_author = run_id(run.rpartition("/")[0], fingerprint(author)) == run
                signed = len(parts) == len(listed) and verify(author, _to_sign(run, sequence, parts), signature)
                return cls(author, sequence, parts, signature) if of_the_author and signed else None
        return None


def parts_of(body: bytes) -> list[bytes]:
    """A manifest's bytes, cut to what fits a record of the DHT."""
    return [body[start : start + PART] for start in range(0, len(body), PART)]


def _to_sign(run: str, sequence: int, parts: Sequence[bytes]) -> bytes:
    return _SEALED + msgpack.packb([run, sequence, *parts])


@dataclass(frozen=True)
class SignedManifest:
    """A manifest with its bytes, which nobody but its author can change, and the proof of that."""

    manifest: Manifest
    body: bytes
    seal: Seal

    @classmethod
    def sign(cls, manifest: Manifest, author: Identity) -> SignedManifest:
        """Raises BadInput where it is too long."""
        body = msgpack.packb(manifest.model_dump())
        if len(body) > PART * MAX_PARTS:
            raise BadInput(
                f"the manifest has {len(body)} bytes, more than {PART * MAX_PARTS}; shorten its lists of peers"
            )
        return cls(manifest, body, Seal.of(body, manifest, author))

    @classmethod
    def opened(cls, body: bytes, seal: Seal, run: str) -> SignedManifest:
        """Read a manifest of ``run`` from bytes that anybody may have sent. Raises BadManifest."""
        if tuple(blake3(part).digest() for part in parts_of(body)) != seal.parts:
            raise BadManifest("it is not what its author has signed")
        try:
            manifest = Manifest.model_validate(msgpack.unpackb(body, strict_map_key=True))
        except (ValueError, TypeError, msgpack.UnpackException, ValidationError) as error:
            raise BadManifest(f"it cannot be read: {' '.join(str(error).split())[:200]}") from None
        if manifest.run != run or (manifest.author, manifest.sequence) != (seal.author, seal.sequence):
            raise BadManifest("it is of another run, or another one of this run, than its author has signed")
        _check(manifest)
        return cls(manifest, body, seal)

    def to_bytes(self) -> bytes:
        """As ``from_bytes`` reads it."""
        packed: bytes = msgpack.packb({"run": self.manifest.run, "seal": self.seal.to_fields(), "body": self.body})
        return packed

    @classmethod
    def from_bytes(cls, data: bytes, run: str | None) -> SignedManifest:
        """Read one of ``run``, or of whatever run it says. Raises BadManifest."""
        try:
            fields = msgpack.unpackb(data, strict_map_key=True)
        except (ValueError, TypeError, msgpack.UnpackException):
            raise BadManifest("it is no msgpack") from None
        match fields:
            case {"seal": dict(seal_fields), "body": bytes(body), "run": str(of_run)} if run in (None, of_run):
                run = of_run
                seal = Seal.from_fields(seal_fields, run)
                if seal is not None:
                    return cls.opened(body, seal, run)
        raise BadManifest("it is not signed by the author of this run")


def _check(manifest: Manifest) -> None:
    """What an author may get wrong, and no peer of the run could work with."""
    for entry in manifest.changes:
        for name in entry.values:
            section, _, key = name.partition(".")
            if key not in CHANGEABLE.get(section, ()):
                raise BadManifest(f"it changes {name[:64]!r}, which cannot change while a run goes on")
    try:
        terms = manifest.terms
    except BadInput as error:
        if manifest.protocol == PROTOCOL:
            raise BadManifest(str(error)) from None
        return  # a newer program's recipe: what there is to say is that this one is too old
    if terms.base.run.name != manifest.name:
        raise BadManifest("its recipe is that of a run of another name")
    try:
        _check_sources(terms.base)
    except BadInput as error:
        raise BadManifest(str(error)) from None


def check_signable(manifest: Manifest) -> None:
    """What an author may wish for and cannot have. Raises BadInput."""
    try:
        Manifest.model_validate(manifest.model_dump())
        Version(manifest.minimum_version)
    except ValidationError as error:
        mistake = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in mistake["loc"])
        raise BadInput(f"the manifest would not be one: {where}: {mistake['msg']}") from None
    except InvalidVersion:
        raise BadInput(f"--minimum-version {manifest.minimum_version!r} is no version like 0.2.0") from None
    _check_sources(manifest.terms.base)


def _check_sources(recipe: Recipe) -> None:
    """Raises BadInput for what somebody else must not say where it is on a machine.

    An author could otherwise have a peer learn from, and so give away, what is in any of its files. What is on the hub
    is public anyway.
    """
    data = recipe.data
    check_source("data.source", data.source, STDLIB)
    check_source("data.tokenizer", data.tokenizer, BYTES)
    check_source("model.source", recipe.model.source)
    places = {
        "data.mirror": data.mirror,
        "data.cache": data.cache,
        "logging.tensorboard": recipe.logging.tensorboard,
        "logging.wandb": recipe.logging.wandb,
    }
    for key, place in places.items():
        if place:
            raise BadInput(f"{key}: is each peer's own choice; leave it out of the recipe of a public run")


def check_source(key: str, source: str, built_in: str = "") -> None:
    """Raises BadInput for a place that is neither on the hub nor in the folder of the peer."""
    if source == built_in or _NAME_ON_THE_HUB.fullmatch(source):
        return
    path = Path(source)
    if path.is_absolute() or ".." in path.parts or source.startswith(("~", HUB)):
        raise BadInput(
            f"{key} {source[:80]!r}: a public run names what is built in, a name on the hub, or a path without '..', "
            "which begins in the folder data in that of each peer"
        )


def check_version(manifest: Manifest) -> None:
    """Raises BadInput, with what to upgrade, where this program is not one that the run is made for."""
    installed = importlib.metadata.version("prime_p2p")
    if manifest.protocol != PROTOCOL:
        older = manifest.protocol > PROTOCOL
        advice = "upgrade prime_p2p" if older else "take an older release of prime_p2p, or ask its author to go on"
        raise BadInput(
            f"run {manifest.name} speaks protocol {manifest.protocol}, this program (prime_p2p {installed}) protocol "
            f"{PROTOCOL}: {advice}"
        )
    try:
        too_old = Version(installed) < Version(manifest.minimum_version)
    except InvalidVersion:
        too_old = False
    if too_old:
        raise BadInput(
            f"run {manifest.name} asks for prime_p2p {manifest.minimum_version} or newer, this is {installed}: upgrade "
            "it, as with pip install --upgrade prime_p2p"
        )
