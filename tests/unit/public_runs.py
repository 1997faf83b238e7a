"""Manifests and authors for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prime_p2p.network.identity import Identity
from prime_p2p.public.manifest import Manifest, SignedManifest
from prime_p2p.recipe import Recipe

TINY = Path(__file__).parents[2] / "peers" / "tiny.toml"


def author(folder: Path, name: str = "author.key") -> Identity:
    return Identity.load_or_create(folder / name)


def manifest(by: Identity, **changes: Any) -> Manifest:
    """The manifest of a run that is called tiny."""
    recipe = Recipe.load(TINY).model_dump(mode="json")
    fields = {"name": "tiny", "author": by.peer_id, "sequence": 1, "issued_at": 1.0, "recipe": recipe}
    return Manifest.model_validate(fields | {"initial_state": bytes(32)} | changes)


def signed(by: Identity, **changes: Any) -> SignedManifest:
    return SignedManifest.sign(manifest(by, **changes), by)
