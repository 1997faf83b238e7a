"""Who is admitted to a public run."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from public_runs import author

from prime_p2p.errors import BadInput
from prime_p2p.network import clock
from prime_p2p.network.identity import Identity
from prime_p2p.public.admission import Admission, Invitation, invited_until
from prime_p2p.public.public_run import Door

RUN = "tiny/fingerprint"
LATER = 2.0**40


@pytest.fixture
def by(tmp_path: Path) -> Identity:
    return author(tmp_path)


@pytest.fixture
def guest(tmp_path: Path) -> str:
    return author(tmp_path, "guest.key").peer_id


@pytest.fixture
def other(tmp_path: Path) -> str:
    return author(tmp_path, "other.key").peer_id


def door(by: Identity, **rules: object) -> Door:
    return Door(RUN, by.peer_id, Admission.model_validate(rules))


def test_an_open_run_admits_anybody_but_who_is_banned(by: Identity, guest: str, other: str) -> None:
    opened = door(by, banned=[other])
    assert opened.admits(guest, b"")
    assert opened.lets_in(guest)
    assert not opened.admits(other, b"")


def test_a_list_admits_those_on_it_until_they_are_banned(by: Identity, guest: str, other: str) -> None:
    listed = door(by, rule="allow", peers=[guest])
    assert listed.admits(guest, b"")
    assert not listed.admits(other, b"")
    assert not door(by, rule="allow", peers=[guest], banned=[guest]).admits(guest, b"")


def test_an_invitation_admits_its_holder_and_nobody_who_saw_it_used(by: Identity, guest: str, other: str) -> None:
    invitation = Invitation.from_text(Invitation.make(RUN, LATER, by).to_text())
    credential = invitation.credential(guest)
    inviting = door(by, rule="token")
    assert not inviting.lets_in(guest)  # it has not shown anything
    assert inviting.admits(guest, credential)
    assert inviting.lets_in(guest)
    assert not inviting.admits(other, credential)
    assert not inviting.lets_in(other)
    assert inviting.admits(other, invitation.credential(other))  # whoever holds the invitation itself


def test_an_invitation_to_another_run_or_by_another_author_is_worth_nothing(
    by: Identity, guest: str, tmp_path: Path
) -> None:
    elsewhere = Invitation.make("other/fingerprint", LATER, by).credential(guest)
    stranger = Invitation.make(RUN, LATER, author(tmp_path, "stranger.key")).credential(guest)
    assert invited_until(elsewhere, RUN, by.peer_id, guest) is None
    assert invited_until(stranger, RUN, by.peer_id, guest) is None


def test_an_invitation_ends(by: Identity, guest: str) -> None:
    over = Invitation.make(RUN, clock.now() - 1, by).credential(guest)
    assert not door(by, rule="token").admits(guest, over)


def test_nobody_prolongs_an_invitation(by: Identity, guest: str) -> None:
    shown = msgpack.unpackb(Invitation.make(RUN, clock.now() - 1, by).credential(guest))
    longer = msgpack.packb(shown | {"until": LATER})
    assert invited_until(longer, RUN, by.peer_id, guest) is None


def test_a_banned_guest_is_not_admitted_whatever_it_shows(by: Identity, guest: str) -> None:
    credential = Invitation.make(RUN, LATER, by).credential(guest)
    assert not door(by, rule="token", banned=[guest]).admits(guest, credential)


def test_an_invitation_does_not_show_its_secret(by: Identity, guest: str) -> None:
    invitation = Invitation.make(RUN, LATER, by)
    assert invitation.key.hex() not in repr(invitation)
    assert repr(invitation.key) not in repr(invitation)
    assert invitation.key not in invitation.credential(guest)


@given(st.text(max_size=200) | st.binary(max_size=90).map(lambda data: f"prime-invitation-{data.hex()}"))
def test_what_is_no_invitation_is_bad_input_that_does_not_repeat_it(text: str) -> None:
    with pytest.raises(BadInput) as error:
        Invitation.from_text(text)
    assert len(text) < 20 or text not in str(error.value)


@given(st.binary(max_size=300))
def test_bytes_of_anybody_are_no_credential(data: bytes) -> None:
    peer = "12D3KooWD1x17P4sSyhwJLhakrNh2pkZbh5vDpjaVgBJmDEuBhnw"
    assert invited_until(data, RUN, peer, peer) is None
