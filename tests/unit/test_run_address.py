"""Addresses of public runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from public_runs import author

from prime_p2p.errors import BadInput
from prime_p2p.public.run_address import RunAddress, fingerprint

PEER = "12D3KooWD1x17P4sSyhwJLhakrNh2pkZbh5vDpjaVgBJmDEuBhnw"
BOOTSTRAP = f"/ip4/192.0.2.1/tcp/31337/p2p/{PEER}"
AUTHOR = fingerprint(PEER)
ADDRESS = f"{BOOTSTRAP}/run/my-run.2/{AUTHOR}"


def test_an_address_is_read_as_it_is_written() -> None:
    address = RunAddress.parse(ADDRESS)
    assert address == RunAddress(BOOTSTRAP, "my-run.2", AUTHOR)
    assert str(address) == ADDRESS
    assert address.run == f"my-run.2/{AUTHOR}"


def test_line_breaks_of_an_e_mail_do_no_harm() -> None:
    assert RunAddress.parse(f"  {ADDRESS[:60]}\n   {ADDRESS[60:]}\n") == RunAddress.parse(ADDRESS)


def test_an_address_through_a_relay_is_one() -> None:
    through = f"/ip4/192.0.2.9/tcp/1/p2p/{PEER}/p2p-circuit/p2p/{PEER}"
    assert RunAddress.parse(f"{through}/run/a/{AUTHOR}").bootstrap == through


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "has no /run/ part"),
        (BOOTSTRAP, "has no /run/ part"),
        (f"/run/my-run/{AUTHOR}", "does not begin with the address of a peer"),
        (f"{BOOTSTRAP[:-3]}/run/my-run/{AUTHOR}", "does not begin with the address of a peer"),
        (f"/ip4/192.0.2.1/tcp/31337/run/my-run/{AUTHOR}", "does not begin with the address of a peer"),
        (f"{BOOTSTRAP}/run//{AUTHOR}", "names no run"),
        (f"{BOOTSTRAP}/run/../{AUTHOR}", "names no run"),
        (f"{BOOTSTRAP}/run/my-run", "is cut or mistyped"),
        (f"{BOOTSTRAP}/run/my-run/{AUTHOR[:-2]}", "is cut or mistyped"),
        (f"{BOOTSTRAP}/run/my-run/{AUTHOR}/more", "is cut or mistyped"),
        (f"{BOOTSTRAP}/run/my-run/{'0' * 22}", "is cut or mistyped"),
        (ADDRESS * 5, "longer than"),
    ],
)
def test_a_malformed_or_cut_address_is_named_in_one_line(text: str, named: str) -> None:
    with pytest.raises(BadInput, match=named) as error:
        RunAddress.parse(text)
    assert len(str(error.value)) < 400
    assert "\n" not in str(error.value)


@given(st.text(max_size=600) | st.integers(0, len(ADDRESS)).map(lambda end: ADDRESS[:end]))
def test_whatever_is_pasted_is_an_address_or_bad_input(text: str) -> None:
    try:
        assert str(RunAddress.parse(text)) == "".join(text.split())
    except BadInput as error:
        assert "\n" not in str(error)  # noqa: PT017 - both outcomes are right


def test_two_authors_have_two_fingerprints(tmp_path: Path) -> None:
    one, other = author(tmp_path, "one").peer_id, author(tmp_path, "other").peer_id
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one) == fingerprint(one)
