"""The swarm's time: taken over from those a peer joins, then followed where most are."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_p2p.errors import Unreachable
from prime_p2p.network import clock
from prime_p2p.network.clock import LIMIT, Reading, SwarmClock, reading


class Machine:
    """A machine with a clock that can be set, one that cannot, and the swarm's time as it knows it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.wall = 1_800_000_000.0
        self.steady = 1000.0
        patch.setattr(clock, "time", SimpleNamespace(time=lambda: self.wall))
        patch.setattr(clock, "_steady", lambda: self.steady)
        self.clock = SwarmClock()

    def wait(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds

    @property
    def ahead(self) -> float:
        """By how much the swarm's time is ahead of this machine's clock."""
        return round(self.clock.now() - self.wall, 6)

    def readings(self, *ahead: float, delay: float = 0.1) -> list[Reading]:
        """What peers answer that are ahead of this one, each after `delay` seconds."""
        now = self.clock.now()
        return [Reading(now - delay, now - delay / 2 + seconds, now) for seconds in ahead]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_first_peer_goes_by_its_own_clock_also_when_that_is_set(machine: Machine) -> None:
    machine.wait(5.0)
    assert machine.ahead == 0
    for step in (3600.0, -7200.0):
        machine.wall += step
        machine.clock.adopt([])
        machine.clock.follow([])
        assert machine.ahead == 0


@pytest.mark.parametrize(
    ("wrong", "words"), [(40.0, "40.0 s ahead of"), (-40.0, "40.0 s behind"), (LIMIT, "600.0 s ahead of")]
)
def test_a_peer_takes_over_the_time_of_those_it_joins(
    wrong: float, words: str, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.clock.adopt(machine.readings(-wrong))
    assert machine.ahead == -wrong
    assert lines(caplog) == [f"the clock of this machine is {words} the swarm's; going by the swarm's"]


def test_a_second_is_not_worth_a_line(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.clock.adopt(machine.readings(0.9))
    assert machine.ahead == 0.9
    assert lines(caplog) == []


@pytest.mark.parametrize(("wrong", "words"), [(601.0, "601.0 s ahead of"), (-86400.0, "86400.0 s behind")])
def test_a_clock_too_wrong_is_refused_with_what_to_do(wrong: float, words: str, machine: Machine) -> None:
    with pytest.raises(Unreachable) as refused:
        machine.clock.adopt(machine.readings(-wrong))
    assert str(refused.value) == (
        f"the clock of this machine is {words} the swarm's, more than the 600 s that are made up for; "
        "set it, for example with NTP, and start again"
    )
    assert refused.value.exit_code == 3
    assert machine.ahead == 0


def test_the_limit_is_on_the_clock_of_the_machine_not_on_one_step(machine: Machine) -> None:
    machine.clock.adopt(machine.readings(400.0))
    with pytest.raises(Unreachable):
        machine.clock.adopt(machine.readings(400.0))


@pytest.mark.parametrize(
    ("ahead", "moved"),
    [
        ([30.0], 30.0),
        ([30.0, 0.0], 0.0),  # the two disagree: no reason to move
        ([30.0, 30.2, 500.0], 30.2),
        ([30.0, 30.2, -500.0], 30.0),
        ([0.0, 0.0, 30.0], 0.0),
    ],
)
def test_of_those_it_joins_most_are_believed(ahead: list[float], moved: float, machine: Machine) -> None:
    machine.clock.adopt(machine.readings(*ahead))
    assert machine.ahead == moved


def test_the_time_an_answer_takes_does_not_count() -> None:
    assert Reading(100.0, 101.0, 104.0).ahead == 0.0
    assert Reading(100.0, 142.0, 104.0).ahead == 40.0
    assert Reading(100.0, 62.0, 104.0).ahead == -40.0


@pytest.mark.parametrize("theirs", [0.0, -1.0, float("nan"), float("inf"), float("-inf")])
def test_an_answer_without_a_time_is_no_reading(theirs: float) -> None:
    assert reading(100.0, theirs, 104.0) is None


def test_a_clock_that_is_set_moves_nobody_who_has_joined(machine: Machine) -> None:
    machine.clock.adopt(machine.readings(40.0))
    before = machine.clock.now()
    machine.wall -= 3600.0
    machine.clock.follow(machine.readings(0.0, 0.0))
    machine.clock.follow([])
    assert machine.clock.now() == before


def test_a_peer_that_others_have_joined_goes_by_its_clock_no_more(machine: Machine) -> None:
    machine.clock.follow(machine.readings(0.0))
    before = machine.clock.now()
    machine.wall += 3600.0
    machine.clock.follow([])
    assert machine.clock.now() == before


@given(wrong=st.floats(-1e9, 1e9), small=st.floats(-0.5, 0.5))
def test_one_wrong_or_lying_peer_moves_nobody(wrong: float, small: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        machine = Machine(patch)
        machine.wait(10.0)
        machine.clock.follow(machine.readings(wrong))
        assert machine.ahead == 0
        machine.clock.follow(machine.readings(wrong, small))
        assert abs(machine.ahead) <= 0.5


def test_it_moves_to_where_most_are(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.wait(10.0)
    machine.clock.follow(machine.readings(3.0, 3.2, 3.1))
    assert machine.ahead == 3.0
    assert lines(caplog) == ["this peer is 3.0 s behind the others; going by their time"]


def test_it_moves_backwards_slower_than_time_passes(machine: Machine) -> None:
    for _ in range(20):
        before = machine.clock.now()
        machine.wait(1.0)
        others = -8.0 - machine.ahead
        machine.clock.follow(machine.readings(others, others))
        assert machine.clock.now() > before
    assert machine.ahead == -8.0
