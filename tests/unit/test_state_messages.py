"""What peers say about state: an update says its codec, and no other than the two there are."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from prime_p2p.network.frames import FrameError
from prime_p2p.state.messages import STATE, Update


def header(**fields: Any) -> bytes:
    told = {"step": 3, "before": bytes(32), "after": bytes(32), "tokens": 5, "ahead": 1} | fields
    packed: bytes = msgpack.packb(["update", told])
    return packed


@pytest.mark.parametrize("bits", [4, 8])
def test_an_update_says_the_bits_of_its_levels(bits: int) -> None:
    update = STATE.decode(header(bits=bits))
    assert isinstance(update, Update)
    assert update.bits == bits


@pytest.mark.parametrize(
    "fields", [{}, *({"bits": bits} for bits in (0, 2, 5, 6, 7, 12, 16, -4, 2**62, True, "8", 4.0))]
)
def test_an_update_of_any_other_codec_is_no_message(fields: dict[str, Any]) -> None:
    with pytest.raises(FrameError, match="bits"):
        STATE.decode(header(**fields))
