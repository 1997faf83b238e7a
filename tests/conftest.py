"""What every test begins with."""

from __future__ import annotations

import pytest

from prime_p2p.network import dropped


@pytest.fixture(autouse=True)
def _nothing_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test before this one has had a line of the log, or counted."""
    fresh = dropped.Dropped()
    monkeypatch.setattr(dropped, "note", fresh.note)
    monkeypatch.setattr(dropped, "counts", fresh.counts)
