"""What a peer asks its fellows for, and when; the fellows answer from memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from certificates import ANNE, BOB, RUN, certificate, forge

from prime_p2p.contributions import exchange
from prime_p2p.contributions.conversation import Given, _checked
from prime_p2p.contributions.exchange import Exchange
from prime_p2p.contributions.ledger import Ledger
from prime_p2p.contributions.messages import MOST_STEPS, WrongAnswer
from prime_p2p.swarm.certificate import Certificate

NOW = 1000  # the outer step that the peer is at
Fellows = dict[str, dict[int, Certificate]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From which outer steps on fellows were asked what they hold."""
    monkeypatch.setattr(exchange, "PAUSE", 0.001)
    return []


@pytest.fixture
def looking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[int]) -> Callable[[Fellows], Exchange]:
    """An exchange with an empty ledger, that asks these."""

    def make(fellows: Fellows) -> Exchange:
        async def held(node: Any, run: str, peer: str, since: int) -> dict[int, bytes]:
            asked.append(since)
            return {step: one.id for step, one in fellows[peer].items() if step >= since}

        async def certificates(node: Any, run: str, peer: str, order: Mapping[int, bytes]) -> Given:
            assert len(order) <= MOST_STEPS
            return _checked([fellows[peer][step].to_bytes() for step in order][:2], run, order)

        monkeypatch.setattr(exchange, "ask_held", held)
        monkeypatch.setattr(exchange, "ask_certificates", certificates)
        node: Any = SimpleNamespace()
        return Exchange(node, RUN, Ledger(tmp_path / "certificates", RUN), lambda: list(fellows), lambda: NOW)

    return make


def held_by(one: Exchange) -> list[int]:
    return list(one._ledger.held())


def of(*steps: int) -> dict[int, Certificate]:
    return {step: certificate(step, {ANNE: 1, BOB: 2}) for step in steps}


def test_all_that_fellows_hold_is_taken_from_several_answers(looking: Callable[[Fellows], Exchange]) -> None:
    one = looking({"a": of(1, 2, 3, 4), "b": of(3, 4, 5)})
    assert asyncio.run(one._look(["a", "b"], 0))
    assert held_by(one) == [1, 2, 3, 4, 5]
    assert not asyncio.run(one._look(["a", "b"], 0))


def test_nothing_is_taken_of_outer_steps_that_this_peer_has_not_passed(looking: Callable[[Fellows], Exchange]) -> None:
    one = looking({"a": of(NOW - 2, NOW - 1, NOW, 2**62)})
    asyncio.run(one._look(["a"], 0))
    assert held_by(one) == [NOW - 2]


def test_what_is_not_signed_is_taken_from_nobody_and_the_rest_from_whoever_has_it(
    looking: Callable[[Fellows], Exchange],
) -> None:
    one = looking({"liar": {**of(1, 2), 3: forge(certificate(3, {ANNE: 1, BOB: 2}))}, "b": of(3)})
    asyncio.run(one._look(["liar", "b"], 0))
    assert one._ledger.held() == {step: it.id for step, it in of(1, 2, 3).items()}


def test_a_fellow_that_gives_something_else_is_asked_for_nothing_more(
    looking: Callable[[Fellows], Exchange], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = looking({"a": of(1, 2)})
    asked = 0

    async def wrong(*_: Any) -> Given:
        nonlocal asked
        asked += 1
        raise WrongAnswer("gave something else")

    monkeypatch.setattr(exchange, "ask_certificates", wrong)
    assert not asyncio.run(one._look(["a"], 0))
    assert asked == 1


def test_a_peer_that_always_finds_something_new_looks_for_old_gaps_too(
    looking: Callable[[Fellows], Exchange], asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "LONGEST_PAUSE", 0.05)
    fellow = of(NOW - 2)
    one = looking({"a": fellow})

    async def always_new(fellows: list[str], since: int) -> bool:
        asked.append(since)
        if asked.count(0) == 3:
            raise asyncio.CancelledError
        return True

    monkeypatch.setattr(one, "_look", always_new)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(asyncio.wait_for(one._keep_looking(), 30))
    assert asked[0] == 0
    assert NOW - exchange.RECENT in asked


def give_one_at_a_time(monkeypatch: pytest.MonkeyPatch, slow: str, held: dict[int, Certificate]) -> list[str]:
    """Have one fellow do so, and others give all; returns which fellows will have been asked for certificates."""
    asked: list[str] = []

    async def certificates(node: Any, run: str, peer: str, order: Mapping[int, bytes]) -> Given:
        asked.append(peer)
        bodies = [held[step].to_bytes() for step in order]
        return _checked(bodies[:1] if peer == slow else bodies, run, order)

    monkeypatch.setattr(exchange, "ask_certificates", certificates)
    return asked


def test_a_fellow_that_gives_one_at_a_time_does_not_hold_up_what_another_has(
    looking: Callable[[Fellows], Exchange], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = of(*range(1, 41))
    one = looking({"a": held, "b": held})
    asked = give_one_at_a_time(monkeypatch, "a", held)
    asyncio.run(one._look(["a", "b"], 0))
    assert held_by(one) == list(held)
    assert len(asked) < 15


def test_a_look_at_fellows_that_give_next_to_nothing_ends(
    looking: Callable[[Fellows], Exchange], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "LONGEST_LOOK", 0.05)
    held = of(*range(1, 201))
    one = looking({"a": held})
    give_one_at_a_time(monkeypatch, "a", held)
    asyncio.run(one._look(["a"], 0))  # all of it would take 200 pauses of a millisecond
    assert len(held_by(one)) < len(held)


def test_an_answer_with_what_was_not_asked_for_is_a_wrong_one() -> None:
    good = certificate(1, {ANNE: 1, BOB: 2})
    for order in ({}, {2: good.id}, {1: bytes(16)}):
        with pytest.raises(WrongAnswer, match="not asked for"):
            _checked([good.to_bytes()], RUN, order)
    with pytest.raises(WrongAnswer, match="no certificate"):
        _checked([b"bytes"], RUN, {1: good.id})
    assert _checked([good.to_bytes()], RUN, {1: good.id}).certificates == [good]
