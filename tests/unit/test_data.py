import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prime_p2p.errors import BadInput
from prime_p2p.recipe import DataRecipe
from prime_p2p.training.data import STDLIB, Corpus, Sampler, Tokens, validation_sequences
from prime_p2p.training.data.assignment import Place
from prime_p2p.training.data.sampling import SharedOrder, Windows

TEXT: Tokens = (np.arange(5000) * 7919 % 251).astype(np.uint8)


def folder_of(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def load(source: Path | str, validation_share: float = 0.2, exclude: tuple[str, ...] = ()) -> tuple[bytes, bytes]:
    corpus = Corpus.load(DataRecipe(source=str(source), validation_share=validation_share, exclude=exclude))
    return corpus.train.tobytes(), corpus.validation.tobytes()


def pieces(text: bytes) -> set[bytes]:
    """The files that a text was joined from."""
    assert text.endswith(b"\0")
    return set(text[:-1].split(b"\0"))


@pytest.fixture(scope="module")
def standard_library() -> Corpus:
    return Corpus.load(DataRecipe(source=STDLIB, validation_share=0.1))


def test_the_standard_library_gives_megabytes_of_text(standard_library: Corpus) -> None:
    assert standard_library.train.dtype == standard_library.validation.dtype == np.uint8
    assert len(standard_library.train) > 4_000_000
    assert 0.02 < len(standard_library.validation) / len(standard_library.train) < 0.5


def test_the_standard_library_is_taken_without_tests_and_installed_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {"os.py": b"os", "json/decoder.py": b"decoder"}
    dropped = {"site-packages/torch/nn.py": b"1", "json/tests/a.py": b"2", "test/b.py": b"3", "LICENSE.txt": b"4"}
    folder_of(tmp_path, kept | dropped)
    monkeypatch.setattr(sysconfig, "get_path", {"stdlib": str(tmp_path)}.__getitem__)
    train, validation = load(STDLIB)
    assert pieces(train) | pieces(validation) == set(kept.values())


def test_no_file_is_both_trained_on_and_held_out(tmp_path: Path) -> None:
    files = {f"{i % 7}/{i}.txt": f"text {i}".encode() for i in range(200)}
    train, validation = load(folder_of(tmp_path, files))
    assert pieces(train).isdisjoint(pieces(validation))
    assert pieces(train) | pieces(validation) == set(files.values())
    assert 20 <= len(pieces(validation)) <= 60


def test_which_files_are_held_out_depends_on_their_relative_paths_alone(tmp_path: Path) -> None:
    names = [f"{i}.txt" for i in range(50)]
    one = load(folder_of(tmp_path / "one", {name: name.encode() for name in names}))
    other = load(folder_of(tmp_path / "elsewhere" / "other", {name: name.encode() for name in reversed(names)}))
    assert one == other


def test_another_file_moves_no_file_across_the_split(tmp_path: Path) -> None:
    files = {f"{i}.txt": str(i).encode() for i in range(50)}
    before = load(folder_of(tmp_path, files))
    after = load(folder_of(tmp_path, {"new.txt": b"new"}))
    assert pieces(before[0]) <= pieces(after[0])
    assert pieces(before[1]) <= pieces(after[1])


@pytest.mark.parametrize("share", [1e-9, 0.5, 1 - 1e-9])
def test_a_few_files_are_enough_for_both_sides(tmp_path: Path, share: float) -> None:
    train, validation = load(folder_of(tmp_path, {"a": b"aaa", "b": b"bbb", "c": b"ccc"}), share)
    assert pieces(train) | pieces(validation) == {b"aaa", b"bbb", b"ccc"}


def test_one_file_alone_is_split_at_a_position(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(bytes(range(1, 100)))
    train, validation = load(path, 0.25)
    assert train == bytes(range(1, 76))
    assert validation == bytes([*range(76, 100), 0])
    assert load(tmp_path, 0.25) == (train, validation)


def test_hidden_files_binaries_and_what_is_excluded_are_left_out(tmp_path: Path) -> None:
    kept = {"a.txt": b"a", "b/c.md": b"c", "b/d.txt": b"d"}
    dropped = {".hidden": b"1", ".git/x": b"2", "b/image": b"\x89\0\0", "b/drop.me": b"3", "old/e.txt": b"4"}
    folder_of(tmp_path, kept | dropped)
    train, validation = load(tmp_path, exclude=("*.me", "old/*"))
    assert pieces(train) | pieces(validation) == set(kept.values())


def test_a_link_into_nowhere_is_left_out(tmp_path: Path) -> None:
    folder_of(tmp_path, {"a": b"a", "b": b"b"})
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert set(b"".join(load(tmp_path))) == set(b"ab\0")


def test_a_missing_source_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"^data.source: .*nowhere: no such file or folder$"):
        load(tmp_path / "nowhere")


def test_a_folder_without_text_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"^data.source: .*: holds no text files$"):
        load(folder_of(tmp_path, {"image": b"\0"}))


def test_a_path_through_a_file_is_bad_input(tmp_path: Path) -> None:
    folder_of(tmp_path, {"a": b"a"})
    with pytest.raises(BadInput, match=r"^data.source: .*/a/b: no such file or folder$"):
        load(tmp_path / "a" / "b")


def test_text_shorter_than_one_sequence_is_bad_input() -> None:
    with pytest.raises(BadInput, match=r"^data.source: only 16 tokens of training text; model.context = 16 needs 17$"):
        Sampler(TEXT[:16], seed=0, peer_id="a", batch_size=1, context=16)
    with pytest.raises(BadInput, match=r"^data.source: only 16 tokens of validation text"):
        validation_sequences(TEXT[:16], seed=0, sequences=1, context=16)


def test_a_batch_is_cut_out_of_the_text() -> None:
    batch = Sampler(TEXT, seed=0, peer_id="a", batch_size=5, context=16).batch(3).tokens
    assert batch.dtype == torch.int64
    assert batch.shape == (5, 17)
    assert all(bytes(row.tolist()) in TEXT.tobytes() for row in batch)


def test_the_whole_text_is_used_and_not_more() -> None:
    sampler = Sampler(TEXT[:20], seed=0, peer_id="a", batch_size=64, context=16)
    assert {bytes(row.tolist()) for row in sampler.batch(0).tokens} == {TEXT[i : i + 17].tobytes() for i in range(4)}


@given(st.integers(0, 2**63 - 1), st.text(), st.lists(st.integers(0, 2**40), max_size=5))
def test_any_step_can_be_drawn_in_any_order_and_again(seed: int, peer_id: str, steps: list[int]) -> None:
    def sampler() -> Sampler:
        return Sampler(TEXT, seed, peer_id, batch_size=3, context=8)

    one = sampler()
    forward = {step: one.batch(step).tokens for step in steps}
    assert all(torch.equal(sampler().batch(step).tokens, forward[step]) for step in reversed(steps))


def test_steps_peers_and_seeds_draw_different_batches() -> None:
    drawn = [
        Sampler(TEXT, seed, peer_id, batch_size=8, context=8).batch(step).tokens
        for seed in (0, 1)
        for peer_id in ("a", "b")
        for step in (0, 1, 2)
    ]
    assert len({tuple(batch.flatten().tolist()) for batch in drawn}) == len(drawn)


def test_samples_are_the_same_on_every_machine() -> None:
    assert Sampler(TEXT, seed=7, peer_id="a", batch_size=2, context=4).batch(5).tokens.tolist() == [
        [237, 124, 11, 149, 36],
        [12, 150, 37, 175, 62],
    ]
    assert validation_sequences(TEXT, seed=7, sequences=2, context=4).tolist() == [
        [197, 84, 222, 109, 247],
        [126, 13, 151, 38, 176],
    ]


def test_packed_sequences_are_full_and_say_which_document_each_token_is_of(tmp_path: Path) -> None:
    corpus = Corpus.load(DataRecipe(source=str(folder_of(tmp_path, {str(n): b"%d" % n * (n % 7) for n in range(99)}))))
    ends = corpus.train_documents.ends
    batch = Sampler(corpus.train, 0, "a", batch_size=50, context=16, ends=ends).batch(0)
    assert batch.documents is not None
    assert batch.documents.shape == batch.tokens.shape == (50, 17)
    for tokens, documents in zip(batch.tokens.tolist(), batch.documents.tolist(), strict=True):
        ended = [token == 0 for token in tokens]
        assert documents == [sum(ended[:place]) for place in range(17)]


def test_an_epoch_in_a_shared_order_is_every_window_once() -> None:
    order = SharedOrder(Windows(TEXT, 16), seed=1, peer_id="a", batch_size=8)
    assert order.sequences == 4999 // 16 == 312
    rows = [tuple(row) for start in range(0, 312, 8) for row in order.at(start).tokens.tolist()]
    assert sorted(rows) == sorted(tuple(TEXT[start : start + 17].tolist()) for start in range(0, 312 * 16, 16))
    place = Place(contributed=640, step=3, group=("b", "a"), share=80, read=16)
    assert order.position(place, drawn=5) == 640 + 16


def test_validation_sequences_do_not_overlap_and_grow_with_their_number() -> None:
    few = validation_sequences(TEXT, seed=1, sequences=10, context=16)
    many = validation_sequences(TEXT, seed=1, sequences=100, context=16)
    assert few.shape == (10, 17)
    assert {tuple(row) for row in few.tolist()} <= {tuple(row) for row in many.tolist()}
    every = validation_sequences(TEXT, seed=1, sequences=10**9, context=16)
    assert torch.equal(every[:, :16].flatten(), torch.from_numpy(TEXT[: len(every) * 16].astype(np.int64)))


def test_validation_sequences_depend_on_the_seed() -> None:
    one, other = (validation_sequences(TEXT, seed, sequences=10, context=16) for seed in (1, 2))
    assert not torch.equal(one, other)


def test_sampling_leaves_the_global_generators_alone() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.random.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]
    Sampler(TEXT, seed=0, peer_id="a", batch_size=2, context=8).batch(0)
    validation_sequences(TEXT, seed=0, sequences=2, context=8)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()  # type: ignore[index]
