"""From which port a daemon dials, and when it looks for relays."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_p2p.network import daemon_config
from prime_p2p.network.daemon_config import DaemonConfig


@pytest.mark.parametrize(
    ("listen", "announce", "public", "known"),
    [
        ("/ip4/127.0.0.1/tcp/4000", (), False, True),
        ("/ip4/10.1.2.3/tcp/4000", (), False, True),
        ("/ip6/2001:db8::1/tcp/4000", (), False, True),
        ("/ip4/0.0.0.0/tcp/4000", ("/ip4/192.0.2.1/tcp/4000",), False, True),
        ("/ip4/0.0.0.0/tcp/4000", (), True, True),
        ("/ip4/0.0.0.0/tcp/4000", (), False, False),
        ("/ip6/::/tcp/4000", (), False, False),
    ],
)
def test_who_may_be_behind_nat_is_who_has_chosen_no_address(
    listen: str, announce: tuple[str, ...], public: bool, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_config, "_has_global_address", lambda: False)
    config = DaemonConfig(Path("identity"), (listen,), announce, public=public)
    assert config.known_address is known


def test_a_machine_with_an_address_of_the_internet_is_not_behind_nat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_config, "_has_global_address", lambda: True)
    assert DaemonConfig(Path("identity"), ("/ip4/0.0.0.0/tcp/4000",)).known_address
