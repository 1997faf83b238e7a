"""Files of snapshots."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prime_p2p.outer.digest import PIECE
from prime_p2p.outer.state import OuterState
from prime_p2p.state.piece_file import Contents, Copy, Growing, part_of
from prime_p2p.state.undo import Undo

N = PIECE // 4 + 5  # one whole piece and a short one, of each array


def new_state(seed: int = 0) -> OuterState:
    random = np.random.default_rng(seed)
    return OuterState(random.standard_normal(N, np.float32), random.standard_normal(N, np.float32), 3, 300)


def contents_of(state: OuterState) -> Contents:
    return Contents(state.step, state.tokens, N, list(state.pieces))


def piece(state: OuterState, index: int) -> memoryview:
    return part_of((state.anchor, state.momentum), contents_of(state), index)


def test_the_pieces_of_a_state_are_those_that_its_digest_is_made_of() -> None:
    contents = contents_of(new_state())
    assert contents.fits
    assert contents.digest == new_state().digest
    assert [contents.span(index) for index in range(4)] == [
        (0, PIECE),
        (PIECE, 20),
        (4 * N, PIECE),
        (4 * N + PIECE, 20),
    ]


@pytest.mark.parametrize("count", [0, 3, 5])
def test_a_wrong_number_of_hashes_does_not_fit(count: int) -> None:
    assert not Contents(3, 300, N, [bytes(32)] * count).fits


def test_pieces_are_received_in_their_places_by_one_at_a_time_and_then_are_the_state(tmp_path: Path) -> None:
    state = new_state()
    file = Growing.at(tmp_path / "file", contents_of(state))
    assert file.lacking == [0, 1, 2, 3]
    for index in range(4):
        place = file.place(index)
        assert place is not None
        assert file.place(index) is None
        place[:] = bytes(len(place))  # what a peer sent that broke off, or something wrong
        assert not file.proves(index, place)
        file.give_back(index)
        place = file.place(index)
        assert place is not None
        if index == 2:  # somebody else gives it first, and this one goes on with who knows what
            assert file.proves(index, piece(state, index))
            file.accept(index, piece(state, index), in_place=False)
        else:
            place[:] = piece(state, index)
            assert file.proves(index, place)
            file.accept(index, place, in_place=True)
            assert file.place(index) is None
    assert file.lacking == []
    found = file.state()
    assert (found.digest, found.pieces) == (state.digest, state.pieces)
    assert found.anchor.tobytes() == state.anchor.tobytes()
    assert found.momentum.tobytes() == state.momentum.tobytes()


def test_others_get_pieces_from_the_arrays_while_they_are_there_and_then_from_the_file(tmp_path: Path) -> None:
    state = new_state()
    file = Growing.at(tmp_path / "file", contents_of(state))
    for index in range(4):
        place = file.place(index)
        assert place is not None
        place[:] = piece(state, index)
        file.accept(index, place, in_place=True)
        assert file.given == set(range(index + 1))
    file.write(1, piece(state, 1))
    file.have.add(1)
    buffer = memoryview(bytearray(PIECE))
    assert all(file.read_into(buffer, index) == piece(state, index) for index in range(4))
    found = file.state()
    found.anchor[:] = 0
    assert file.given == {1}
    assert file.read_into(buffer, 1) == piece(state, 1)
    with pytest.raises(OSError, match="not kept"):
        file.read_into(buffer, 0)


def test_a_state_is_made_in_the_arrays_that_are_there(tmp_path: Path) -> None:
    state, other = new_state(), new_state(1)
    arrays = (other.anchor, other.momentum)
    file = Growing.at(tmp_path / "file", contents_of(state), arrays)
    for index in range(4):
        file.accept(index, piece(state, index), in_place=False)
    found = file.state()
    assert found.digest == state.digest
    assert found.anchor is arrays[0]
    assert found.momentum is arrays[1]


def test_a_file_that_is_opened_again_has_what_its_bytes_prove(tmp_path: Path) -> None:
    state = new_state()
    file = Growing.at(tmp_path / "file", contents_of(state))
    for index in (0, 1, 3):
        file.write(index, piece(state, index))
    with open(tmp_path / "file", "rb+") as damaged:
        damaged.seek(7)
        damaged.write(b"?")
    again = Growing.at(tmp_path / "file", contents_of(state))
    assert again.missing == again.lacking == [0, 2]
    for index in (0, 2):
        again.accept(index, piece(state, index), in_place=False)
    assert again.state().digest == state.digest


def test_what_the_file_of_a_download_lacks_is_taken_from_its_state_while_that_is_there(tmp_path: Path) -> None:
    state = new_state()
    for goes_on in (True, False):
        file = Growing.at(tmp_path / "file", contents_of(state))
        for index in range(4):
            file.accept(index, piece(state, index), in_place=False)
        file.write(1, piece(state, 1))
        file.have = {1}
        found = file.state()
        copy = file.going_on(found)
        assert copy.have == {1}
        if not goes_on:
            found.end()
        assert copy.given == {0, 1, 2, 3}
        assert [copy.take(index) for index in range(4)] == [goes_on, True, goes_on, goes_on]
        assert copy.given == ({0, 1, 2, 3} if goes_on else {1})
        (tmp_path / "file").unlink()


def test_a_file_of_another_length_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100))
    assert Growing.at(tmp_path / "file", contents_of(new_state())).missing == [0, 1, 2, 3]
    assert (tmp_path / "file").stat().st_size == 8 * N


def test_a_copy_gives_every_piece_at_once_and_keeps_them_when_the_state_goes_on(tmp_path: Path) -> None:
    state = new_state()
    copy = Copy.of(tmp_path, state, contents_of(state))
    before = [bytes(piece(state, index)) for index in range(4)]
    assert copy.given == {0, 1, 2, 3}
    assert copy.have == set()
    assert all(copy.take(index) for index in (3, 0, 1, 2))
    state.put_back(4, 400, lambda anchor, momentum: anchor.fill(0))
    buffer = memoryview(bytearray(PIECE))
    assert [bytes(copy.read_into(buffer, index)) for index in range(4)] == before
    assert not list(tmp_path.iterdir())


def test_a_state_goes_back_to_what_it_was(tmp_path: Path) -> None:
    state = new_state()
    before = state.digest
    undo = Undo(state, tmp_path)
    state.put_back(4, 400, lambda anchor, momentum: anchor.fill(0))
    assert state.digest != before
    undo.go_back()
    assert (state.step, state.tokens, state.digest) == (3, 300, before)
    assert state.anchor.tobytes() == new_state().anchor.tobytes()
