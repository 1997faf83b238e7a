"""The journal: what is replayed from it is what was written, or nothing."""

from __future__ import annotations

import logging
import resource
import struct
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from prime_p2p.allreduce.codec import BlockVector, quantise
from prime_p2p.outer.journal import Journal, JournalEntry, read_update
from prime_p2p.outer.nesterov import OuterOptimizer
from prime_p2p.outer.state import OuterState

N = 2500


def digest_at(step: int, lineage: str = "a") -> bytes:
    return f"{lineage}{step}".encode().ljust(32, b".")


def entry_at(step: int, lineage: str = "a", before: str | None = None, bits: int = 8) -> JournalEntry:
    return JournalEntry(step, digest_at(step, before or lineage), digest_at(step + 1, lineage), 100 + step, N, bits)


def update_at(step: int, bits: int = 8) -> BlockVector:
    update = BlockVector.empty(N, bits)
    quantise(np.random.default_rng(step).standard_normal(N).astype(np.float32), update)
    return update


def filled(directory: Path, steps: range, length: int = 16) -> Journal:
    journal = Journal(directory, length)
    for step in steps:
        journal.append(entry_at(step), update_at(step))
    return journal


def file_of(directory: Path, step: int) -> Path:
    return directory / f"{step:012d}.update"


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def steps_of(entries: list[JournalEntry]) -> list[int]:
    return [entry.step_before for entry in entries]


def test_a_new_journal_is_empty(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "new" / "journal")
    assert journal.entries() == []
    assert journal.path_from(0, digest_at(0)) == []
    with pytest.raises(KeyError):
        journal.read(0)


@pytest.mark.parametrize("reopened", [False, True])
def test_what_is_read_is_what_was_appended(tmp_path: Path, reopened: bool) -> None:
    journal = filled(tmp_path, range(3, 8))
    if reopened:
        journal = Journal(tmp_path)
    assert journal.entries() == [entry_at(step) for step in range(3, 8)]
    for step in range(3, 8):
        entry, update = journal.read(step)
        assert entry == entry_at(step)
        assert update.digest() == update_at(step).digest()


@pytest.mark.parametrize("reopened", [False, True])
def test_a_journal_may_have_updates_of_both_codecs(tmp_path: Path, reopened: bool) -> None:
    journal = Journal(tmp_path)
    for step, bits in enumerate((8, 4, 4, 8)):
        journal.append(entry_at(step, bits=bits), update_at(step, bits))
    sizes = [file_of(tmp_path, step).stat().st_size for step in range(4)]
    assert sizes[0] == sizes[3] == sizes[1] + N // 2 == sizes[2] + N // 2
    if reopened:
        journal = Journal(tmp_path)
    assert steps_of(journal.path_from(0, digest_at(0))) == [0, 1, 2, 3]
    for step, bits in enumerate((8, 4, 4, 8)):
        for entry, update in (journal.read(step), read_update(file_of(tmp_path, step))):
            assert entry == entry_at(step, bits=bits)
            assert (update.bits, update.digest()) == (bits, update_at(step, bits).digest())


def test_a_file_of_int8_is_as_it_always_was_and_says_no_codec(tmp_path: Path) -> None:
    update = update_at(7)
    head = struct.pack(
        "<20sQ32s32sQQ32s", b"prime-p2p journal v1", 7, digest_at(7), digest_at(8), 107, N, update.digest()
    )
    written = head + blake3(head).digest() + update.scales.tobytes() + update.values.tobytes()
    file_of(tmp_path, 7).write_bytes(written)
    journal = Journal(tmp_path)
    assert journal.entries() == [entry_at(7)]
    assert journal.read(7)[1].digest() == update.digest()
    journal.append(entry_at(7), update)
    assert file_of(tmp_path, 7).read_bytes() == written


@pytest.mark.parametrize("entry", [entry_at(0, bits=4), JournalEntry(0, digest_at(0), digest_at(1), 1, N + 1)])
def test_an_entry_that_is_not_of_its_update_is_refused(tmp_path: Path, entry: JournalEntry) -> None:
    with pytest.raises(ValueError, match="bits, an update of 2500 of 8"):
        Journal(tmp_path).append(entry, update_at(0))
    assert not list(tmp_path.iterdir())


def test_an_empty_update_can_be_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(JournalEntry(0, digest_at(0), digest_at(1), 0, 0), BlockVector.empty(0))
    assert journal.read(0)[1].n == 0


def test_only_the_last_updates_are_kept(tmp_path: Path) -> None:
    journal = filled(tmp_path, range(10), length=4)
    assert steps_of(journal.entries()) == [6, 7, 8, 9]
    assert sorted(path.name for path in tmp_path.iterdir()) == [file_of(tmp_path, step).name for step in (6, 7, 8, 9)]
    with pytest.raises(KeyError):
        journal.read(5)


def test_a_shorter_journal_forgets_with_the_next_update(tmp_path: Path) -> None:
    filled(tmp_path, range(6))
    journal = Journal(tmp_path, length=2)
    journal.append(entry_at(6), update_at(6))
    assert steps_of(journal.entries()) == [5, 6]


def test_more_updates_may_be_kept_for_ones_own_restart_than_others_count_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path, length=2, keep=4)
    for step in range(6):
        journal.append(entry_at(step), update_at(step))
    assert journal.length == 2
    assert steps_of(Journal(tmp_path, length=2, keep=4).entries()) == [2, 3, 4, 5]


def test_the_path_from_a_state_leads_to_the_newest(tmp_path: Path) -> None:
    journal = filled(tmp_path, range(3, 8))
    assert steps_of(journal.path_from(3, digest_at(3))) == [3, 4, 5, 6, 7]
    assert steps_of(journal.path_from(7, digest_at(7))) == [7]


@pytest.mark.parametrize(("step", "digest"), [(5, digest_at(5, "b")), (5, digest_at(4)), (2, digest_at(2))])
def test_no_path_leads_from_a_state_that_is_not_in_the_journal(tmp_path: Path, step: int, digest: bytes) -> None:
    assert filled(tmp_path, range(3, 8)).path_from(step, digest) == []


def test_no_path_leads_on_from_the_newest_state(tmp_path: Path) -> None:
    assert filled(tmp_path, range(3, 8)).path_from(8, digest_at(8)) == []


def test_replaying_a_path_gives_the_state_it_leads_to(tmp_path: Path) -> None:
    anchor = np.linspace(-1, 1, N, dtype=np.float32)
    ahead, behind = OuterState.initial(anchor), OuterState.initial(anchor)
    journal = Journal(tmp_path)
    for step in range(4):
        before = ahead.digest
        after = ahead.apply(update_at(step), 10 + step, OuterOptimizer())
        journal.append(JournalEntry(step, before, after, 10 + step, N), update_at(step))
        if step == 0:
            behind.apply(update_at(step), 10 + step, OuterOptimizer())
    for entry in journal.path_from(behind.step, behind.digest):
        assert behind.apply(journal.read(entry.step_before)[1], entry.tokens, OuterOptimizer()) == entry.digest_after
    assert behind.digest == ahead.digest


@pytest.mark.parametrize("offset", [0, 30, 140, 200, -N - 1, -1])
def test_a_damaged_update_is_removed_with_one_line_when_it_is_read(
    tmp_path: Path, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    journal = filled(tmp_path, range(5))
    flip(file_of(tmp_path, 2), offset)
    with pytest.raises(KeyError):
        journal.read(2)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert file_of(tmp_path, 2).name in caplog.text
    assert not file_of(tmp_path, 2).exists()
    assert steps_of(journal.entries()) == [0, 1, 3, 4]


def test_an_update_of_another_lineage_in_the_place_of_ours_is_not_read(tmp_path: Path) -> None:
    journal = filled(tmp_path / "ours", range(3))
    Journal(tmp_path / "theirs").append(entry_at(2, "b"), update_at(2))
    file_of(tmp_path / "theirs", 2).replace(file_of(tmp_path / "ours", 2))
    with pytest.raises(KeyError):
        journal.read(2)


def test_no_path_leads_over_a_gap(tmp_path: Path) -> None:
    journal = filled(tmp_path, range(5))
    file_of(tmp_path, 2).unlink()
    journal = Journal(tmp_path)
    assert journal.path_from(1, digest_at(1)) == []
    assert journal.path_from(2, digest_at(2)) == []
    assert steps_of(journal.path_from(3, digest_at(3))) == [3, 4]


def test_updates_before_a_gap_are_forgotten_with_the_next_update(tmp_path: Path) -> None:
    filled(tmp_path, range(5))
    file_of(tmp_path, 2).unlink()
    journal = Journal(tmp_path)
    journal.append(entry_at(5), update_at(5))
    assert steps_of(journal.entries()) == [3, 4, 5]
    assert not file_of(tmp_path, 1).exists()


@pytest.mark.parametrize("keep", [0, 10, 200, -1])
def test_a_torn_file_is_removed_with_one_line_when_the_journal_is_opened(
    tmp_path: Path, keep: int, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, range(5))
    torn = file_of(tmp_path, 4)
    torn.write_bytes(torn.read_bytes()[:keep])
    journal = Journal(tmp_path)
    assert steps_of(journal.entries()) == [0, 1, 2, 3]
    assert len(caplog.records) == 1
    assert not torn.exists()


def test_a_file_of_another_step_is_removed_when_the_journal_is_opened(tmp_path: Path) -> None:
    filled(tmp_path, range(3))
    file_of(tmp_path, 2).rename(file_of(tmp_path, 7))
    assert steps_of(Journal(tmp_path).entries()) == [0, 1]
    assert not file_of(tmp_path, 7).exists()


def test_what_a_crash_left_half_written_is_cleared_and_other_files_are_left_alone(tmp_path: Path) -> None:
    filled(tmp_path, range(2))
    half, other = tmp_path / "000000000002.partial", tmp_path / "notes.txt"
    half.write_bytes(b"half")
    other.write_bytes(b"mine")
    assert steps_of(Journal(tmp_path).entries()) == [0, 1]
    assert not half.exists()
    assert other.exists()


def test_a_new_lineage_replaces_the_abandoned_one(tmp_path: Path) -> None:
    journal = filled(tmp_path, range(6))
    journal.append(entry_at(3, "b", before="a"), update_at(33))
    assert steps_of(journal.entries()) == [0, 1, 2, 3]
    assert journal.path_from(0, digest_at(0))[-1].digest_after == digest_at(4, "b")
    assert journal.path_from(4, digest_at(4)) == []
    assert journal.read(3)[1].digest() == update_at(33).digest()
    assert Journal(tmp_path).entries() == journal.entries()


def test_an_update_that_follows_a_snapshot_starts_the_journal_anew(tmp_path: Path) -> None:
    journal = filled(tmp_path, range(3))
    journal.append(entry_at(20), update_at(20))
    assert steps_of(journal.entries()) == [20]
    journal.append(entry_at(21, "b"), update_at(21))
    assert steps_of(journal.entries()) == [21]


def test_an_update_that_cannot_be_written_leaves_the_journal_as_it_was(tmp_path: Path) -> None:
    journal = filled(tmp_path, range(3))
    files = sorted(tmp_path.iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            journal.append(entry_at(3), update_at(3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(tmp_path.iterdir()) == files
    assert steps_of(journal.entries()) == [0, 1, 2]
    journal.append(entry_at(3), update_at(3))
    assert steps_of(journal.entries()) == [0, 1, 2, 3]
