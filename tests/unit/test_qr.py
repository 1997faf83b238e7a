"""QR codes for a terminal."""

from __future__ import annotations

from prime_p2p.public.qr import qr_code

PEER = "12D3KooWD1x17P4sSyhwJLhakrNh2pkZbh5vDpjaVgBJmDEuBhnw"
ADDRESS = f"/ip4/192.0.2.1/tcp/31337/p2p/{PEER}/run/my-run/RtbTMuUnjx33J9aGCtg83C"


def test_an_address_is_a_square_that_a_terminal_of_80_columns_shows() -> None:
    lines = qr_code(ADDRESS).splitlines()
    widths = {len(line) for line in lines}
    assert len(lines) > 10
    assert max(widths) <= 80
