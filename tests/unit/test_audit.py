"""The audit of a peer's folder: what is right is confirmed, and the first thing that is not is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from peer_folders import Made, make, small_recipe

from prime_p2p.audit import Audit
from prime_p2p.errors import BadInput
from prime_p2p.outer.journal import Journal
from prime_p2p.terms import Terms


@pytest.fixture(scope="module")
def folder_of_ten(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Ten outer steps, with checkpoints at the fourth and the eighth."""
    return make(tmp_path_factory.mktemp("peer"), 10, saved=(4, 8))


@pytest.fixture
def made(folder_of_ten: Made, tmp_path: Path) -> Made:
    shutil.copytree(folder_of_ten.folder, tmp_path / "peer")
    return Made(tmp_path / "peer", folder_of_ten.digests, folder_of_ten.anchor)


def audit(folder: Path) -> tuple[list[str], list[str]]:
    found: list[str] = []
    wrong: list[str] = []
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    Audit(folder, found.append, wrong.append).run()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert not [line for line in found + wrong if "\n" in line]
    return found, wrong


def update_of(made: Made, outer_step: int) -> Path:
    return made.folder / "journal" / f"{outer_step - 1:012d}.update"


def test_all_that_is_there_is_confirmed_from_the_model_the_run_began_with(made: Made) -> None:
    found, wrong = audit(made.folder)
    assert wrong == []
    assert found == [
        f"checkpoint 000001-step-4: whole, its digest is {made.digests[4].hex()[:16]}",
        f"checkpoint 000002-step-8: whole, its digest is {made.digests[8].hex()[:16]}",
        "journal: outer steps 1 to 10 made again from the model the recipe begins with, every digest confirmed",
    ]


def test_updates_of_int4_are_made_again(tmp_path: Path) -> None:
    made = make(tmp_path / "peer", 4, saved=(2,), overrides=["round.codec=int4"])
    found, wrong = audit(made.folder)
    assert wrong == []
    assert found[1] == (
        "journal: outer steps 1 to 4 made again from the model the recipe begins with, every digest confirmed"
    )
    flip_a_bit(update_of(made, 3))
    assert audit(made.folder)[1][0].startswith("journal: 000000000002.update: its bytes are not those")


@pytest.mark.parametrize("optimizer", ["nesterov", "momentum", "average"])
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_outer_steps_of_a_schedule_are_made_again_with_the_rate_of_each(
    optimizer: str, schedule: str, tmp_path: Path
) -> None:
    schedules = [f"outer.optimizer={optimizer}", f"outer.schedule={schedule}", "outer.total_steps=5"]
    made = make(tmp_path / "peer", 6, saved=(2,), overrides=schedules)
    found, wrong = audit(made.folder)
    assert wrong == []
    assert "outer steps 1 to 6 made again from the model" in found[1]
    wrong = []
    Audit(made.folder, found.append, wrong.append, Terms(small_recipe(f"outer.optimizer={optimizer}"))).run()
    assert wrong[0].startswith("journal: outer step 2: its update leads to ")


def test_a_journal_that_is_shorter_is_made_again_from_the_oldest_checkpoint_it_leads_on_from(made: Made) -> None:
    for step in (1, 2, 3):
        update_of(made, step).unlink()
    found, wrong = audit(made.folder)
    assert wrong == []
    assert found[2:] == [
        "journal: outer steps 5 to 10 made again from checkpoint 000001-step-4, every digest confirmed",
        "journal: the update of outer step 4 is whole, but not made again: no whole checkpoint leads on to there",
    ]


def test_a_gap_in_the_journal_is_made_good_by_a_later_checkpoint(made: Made) -> None:
    update_of(made, 7).unlink()
    found, wrong = audit(made.folder)
    assert wrong == []
    assert [line.partition(", every")[0] for line in found[2:]] == [
        "journal: outer steps 1 to 6 made again from the model the recipe begins with",
        "journal: outer steps 9 to 10 made again from checkpoint 000002-step-8",
        "journal: the update of outer step 8 is whole, but not made again: no whole checkpoint leads on to there",
    ]


def flip_a_bit(path: Path, where: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)


def forge(made: Made) -> None:
    """Another update in the place of the sixth, with hashes that are right for it."""
    journal = Journal(made.folder / "journal", 100)
    later = [journal.read(step) for step in range(6, 10)]
    entry, update = journal.read(5)
    other = journal.read(4)[1]
    assert other.digest() != update.digest()
    journal.append(entry, other)
    for one in later:
        journal.append(*one)


@pytest.mark.parametrize(
    ("harm", "first"),
    [
        (lambda made: flip_a_bit(update_of(made, 6)), "journal: 000000000005.update: its bytes are not those"),
        (lambda made: flip_a_bit(update_of(made, 6), 30), "journal: 000000000005.update: its header is damaged"),
        (forge, "journal: outer step 6: its update leads to "),
        (
            lambda made: flip_a_bit(made.folder / "checkpoints" / "000001-step-4" / "outer.safetensors"),
            "checkpoint 000001-step-4: outer.safetensors is damaged",
        ),
    ],
)
def test_the_first_thing_that_is_wrong_is_named(made: Made, harm: Callable[[Made], None], first: str) -> None:
    harm(made)
    found, wrong = audit(made.folder)
    assert wrong[0].startswith(first), wrong
    assert found


def test_what_comes_after_a_mismatch_is_not_said_to_be_confirmed(made: Made) -> None:
    forge(made)
    found, wrong = audit(made.folder)
    assert "outer steps 1 to 5 made again" in found[2]
    assert "outer steps 9 to 10 made again from checkpoint 000002-step-8" in found[3]
    assert len(wrong) == 1


def test_a_checkpoint_that_is_not_where_the_journal_leads_is_a_mismatch(made: Made) -> None:
    other = make(made.folder.parent / "other", 6, saved=(6,), seed=2)
    shutil.copytree(other.folder / "checkpoints" / "000001-step-6", made.folder / "checkpoints" / "000003-step-6")
    assert audit(made.folder)[1] == [
        f"journal: outer step 6: its update leads to {made.digests[6].hex()[:16]}, checkpoint 000003-step-6 has "
        f"{other.digests[6].hex()[:16]}"
    ]


@pytest.mark.parametrize("name", ["nothing", "checkpoints"])
def test_a_folder_without_checkpoints_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(BadInput, match="no checkpoint in there; give the folder of a peer"):
        audit(tmp_path / name)


def test_an_empty_journal_is_no_mismatch(made: Made) -> None:
    shutil.rmtree(made.folder / "journal")
    found, wrong = audit(made.folder)
    assert (found[-1], wrong) == ("journal: empty", [])
