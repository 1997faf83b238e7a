"""The ledger: one certificate for each outer step, whatever happens to the file, in bounded room."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from certificates import ANNE, BOB, RUN, certificate

from prime_p2p.contributions.ledger import Ledger
from prime_p2p.swarm.certificate import Certificate

SIZE = len(certificate(1, {ANNE: 1, BOB: 1}).to_bytes())


def steps(ledger: Ledger, *wanted: int) -> list[int]:
    """The outer steps of the certificates that the ledger gives."""
    return [Certificate.from_bytes(body, RUN).group.step for body in ledger.read(wanted, 1 << 20)]


def test_what_was_kept_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "certificates"
    ledger = Ledger(path, RUN)
    kept = [certificate(step, {ANNE: step, BOB: 1}) for step in (5, 3, 4)]
    assert all(ledger.add(one) for one in kept)
    again = Ledger(path, RUN)
    assert again.held() == ledger.held() == {one.group.step: one.id for one in sorted(kept, key=lambda c: c.group.step)}
    assert list(again.held(since=4)) == [4, 5]
    assert [Certificate.from_bytes(body, RUN) for body in again.read([5, 3, 9], 1 << 20)] == kept[:2]
    assert len(again.read([5, 3, 4], 2 * SIZE + 10)) == 2


def test_of_one_outer_step_the_first_stays_unless_the_next_is_of_our_own_commit(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "certificates", RUN)
    first, second = certificate(1, {ANNE: 1}), certificate(1, {BOB: 2})
    assert ledger.add(first)
    assert not ledger.add(second)
    assert ledger.held() == {1: first.id}
    assert ledger.add(second, ours=True)
    assert ledger.held() == Ledger(tmp_path / "certificates", RUN).held() == {1: second.id}


@pytest.mark.parametrize("cut", [1, 100, SIZE, SIZE + 5])
def test_a_torn_end_is_cut_off_and_the_ledger_goes_on(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "certificates"
    ledger = Ledger(path, RUN)
    for step in range(3):
        ledger.add(certificate(step, {ANNE: 1, BOB: 1}))
    path.write_bytes(path.read_bytes()[:-cut])
    torn = Ledger(path, RUN)
    assert list(torn.held()) == [0, 1] if cut < SIZE + 5 else [0, 1]
    assert torn.add(certificate(2, {ANNE: 1, BOB: 1}))
    assert steps(Ledger(path, RUN), 0, 1, 2) == [0, 1, 2]


def test_a_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "certificates"
    ledger = Ledger(path, RUN)
    for step in range(3):
        ledger.add(certificate(step, {ANNE: 1, BOB: 1}))
    data = bytearray(path.read_bytes())
    data[SIZE + 60] ^= 1  # in the second
    path.write_bytes(data)
    assert list(Ledger(path, RUN).held()) == [0]


def test_certificates_of_another_run_are_said_once_and_not_held(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Ledger(tmp_path / "certificates", "other")
    for step in range(3):
        other.add(certificate(step, {ANNE: 1}, run="other"))
    assert Ledger(tmp_path / "certificates", RUN).held() == {}
    assert [record.getMessage() for record in caplog.records if "of no use" in record.getMessage()] == [
        f"3 certificates in {tmp_path / 'certificates'} are of no use, at last: of another run"
    ]


def test_the_file_is_bounded_and_the_oldest_make_room(tmp_path: Path) -> None:
    path = tmp_path / "certificates"
    ledger = Ledger(path, RUN, most_bytes=10 * (SIZE + 12))
    for step in range(25):
        assert ledger.add(certificate(step, {ANNE: 1, BOB: 1}))
        assert path.stat().st_size <= 10 * (SIZE + 12)
    held = list(ledger.held())
    assert held == list(range(held[0], 25))
    assert len(held) >= 7
    assert ledger.oldest > 0
    assert not ledger.add(certificate(ledger.oldest - 1, {ANNE: 1, BOB: 1}))
    assert steps(Ledger(path, RUN), *held) == held
    assert not path.with_suffix(".partial").exists()


def test_a_ledger_that_cannot_be_written_is_as_before(tmp_path: Path) -> None:
    path = tmp_path / "certificates"
    ledger = Ledger(path, RUN)
    ledger.add(certificate(1, {ANNE: 1}))
    path.unlink()
    with pytest.raises(OSError, match="No such file"):
        ledger.add(replace(certificate(2, {ANNE: 1})))
    assert list(ledger.held()) == [1]
