"""Peers that are named by the end of their id."""

from __future__ import annotations

import pytest

from prime_p2p.errors import BadInput
from prime_p2p.public import peer_ids

ONE = "12D3KooWPqDmbTyhaTVD1Lt1ZdsNmsAJXgvPvsmGcE8eZdfeNHeJ"
OTHER = "12D3KooWFv3aHiacgjtUsaZXCcNZMmoLUbCnTWnh9noZ3dLF9jab"


@pytest.mark.parametrize("given", [ONE, ONE[-8:], f"…{ONE[-8:]}", f"...{ONE[-6:]}"])
def test_the_end_of_the_id_of_a_peer_that_was_seen_is_enough(given: str) -> None:
    assert peer_ids.whole(given, [OTHER, ONE]) == ONE


def test_a_whole_id_is_taken_also_where_nobody_saw_it() -> None:
    assert peer_ids.whole(ONE, []) == ONE


def test_an_end_that_is_that_of_none_or_of_several_is_refused_in_one_line() -> None:
    with pytest.raises(BadInput, match=f"that ends in {ONE[-8:]}: give the whole id"):
        peer_ids.whole(ONE[-8:], [OTHER])
    twin = OTHER[:-8] + ONE[-8:]
    with pytest.raises(BadInput, match=f"2 peers end in {ONE[-8:]}, .*{OTHER[:-8]}"):
        peer_ids.whole(ONE[-8:], [ONE, twin])


@pytest.mark.parametrize("given", ["", "eNHeJ", "…", "peer-1", "0OIl0OIl", "-lift", "a b c d e f"])
def test_what_is_no_end_of_an_id_is_refused(given: str) -> None:
    with pytest.raises(BadInput, match="nor the end of one"):
        peer_ids.check(given)
