"""What one peer may ask: a stock at once, and so much a second."""

from __future__ import annotations

import pytest

from prime_p2p.network.allowance import Allowance


class Clock:
    time = 0.0

    def __call__(self) -> float:
        return self.time


def test_a_stock_is_used_up_and_fills_again() -> None:
    now = Clock()
    allowance = Allowance(rate=10.0, stock=5.0, now=now)
    assert [allowance.take("peer") for _ in range(5)] == [0.0] * 5
    assert allowance.take("peer") == pytest.approx(0.1)
    now.time = 0.2
    assert allowance.take("peer") == 0.0
    now.time = 100.0
    assert [allowance.take("peer") for _ in range(5)] == [0.0] * 5
    assert allowance.take("peer") > 0


def test_what_is_owed_ends() -> None:
    clock = Clock()
    allowance = Allowance(rate=1.0, stock=5.0, now=clock)
    for _ in range(1000):
        allowance.take("peer", 100.0)
    assert allowance.take("peer") == pytest.approx(5.0)
    clock.time = 6.0
    assert allowance.take("peer") == 0.0


def test_peers_do_not_use_up_each_others_and_only_so_many_are_remembered() -> None:
    allowance = Allowance(rate=1.0, stock=1.0, now=Clock())
    assert allowance.take("one") == 0.0
    assert allowance.take("other") == 0.0
    assert allowance.take("one") > 0
    for number in range(10_000):
        allowance.take(str(number))
    assert len(allowance._left) <= 4096
