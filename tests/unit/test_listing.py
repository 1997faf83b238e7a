"""The runs that are known somewhere, as they are shown to people."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from public_runs import author, signed

from prime_p2p.network.node import Node
from prime_p2p.public import listing, manifest_records
from prime_p2p.public.listing import table
from prime_p2p.public.manifest import SignedManifest
from prime_p2p.swarm import membership

PUBLIC = {"public": True, "address": "ADDRESS", "outer_steps": 30, "phase": "train", "admission": "open"}


def cells(**row: object) -> list[str]:
    return table([PUBLIC | {"run": "demo"} | row]).splitlines()[1].split()


def test_a_run_is_where_its_peers_say() -> None:
    assert cells(peers=2, outer_step=7) == ["demo", "2", "7", "of", "30", "trains", "open", "ADDRESS"]


def test_where_nobody_of_a_run_is_there_its_outer_step_is_not_known() -> None:
    assert cells(peers=0, outer_step=None) == ["demo", "0", "-", "nobody", "there", "open", "ADDRESS"]


def test_a_public_run_without_peers_is_listed_with_its_manifest_and_no_outer_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_author = signed(author(tmp_path))

    async def nobody(node: Node, run: str) -> list[dict[str, Any]]:
        return []

    async def newest(node: Node, run: str) -> SignedManifest:
        return by_author

    monkeypatch.setattr(membership, "status", nobody)
    monkeypatch.setattr(manifest_records, "newest", newest)
    row = asyncio.run(listing._row(cast(Node, None), by_author.manifest.run, "BOOTSTRAP"))
    assert (row["peers"], row["outer_step"], row["phase"]) == (0, None, "train")
