"""What a relay says that it carries."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError

from prime_p2p.network.relay import _limit

OK, REFUSED = b"\x28\x64", b"\x28\xc8\x01"  # field 5, the status: 100 and 200
RESERVED = b"\x08\x02\x1a\x04\x08\x01\x10\x02"  # the type, and a reservation, which is skipped
LIMIT = b"\x22\x07\x08\x78\x10\x80\x80\x80\x08"  # 120 seconds and 16 MiB


@pytest.mark.parametrize(
    ("answer", "carried"),
    [
        (RESERVED + LIMIT + OK, 1 << 24),
        (RESERVED + OK, 1 << 63),
        (RESERVED + b"\x22\x00" + OK, 1 << 63),
        (RESERVED + LIMIT + REFUSED, 0),
        (RESERVED + LIMIT, 0),
        (b"", 0),
    ],
)
def test_a_relay_says_how_much_it_carries(answer: bytes, carried: int) -> None:
    assert _limit(answer) == carried


@pytest.mark.parametrize("answer", [b"\x08", b"\x08" + b"\xff" * 20, b"\x22\x7f\x00", b"\x0d\x00\x00\x00\x00"])
def test_what_is_no_answer_of_a_relay_is_refused(answer: bytes) -> None:
    with pytest.raises(DecodeError):
        _limit(answer)
