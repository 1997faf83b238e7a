"""What every test begins with."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from prime_p2p.network import dropped

# How long an example takes says something of the machine, not of the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def _nothing_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test before this one has had a line of the log, or counted."""
    fresh = dropped.Dropped()
    monkeypatch.setattr(dropped, "note", fresh.note)
    monkeypatch.setattr(dropped, "counts", fresh.counts)
