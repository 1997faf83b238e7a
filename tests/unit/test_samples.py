"""The account of what peers have read, and what it says of all of them together."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from prime_p2p import cli
from prime_p2p.errors import BadInput
from prime_p2p.monitor.samples import FILE_NAME, Samples, SamplesLog, Stream, coverage, read_samples

STREAM = Stream("shared", "abc", sequences=100)


def samples(*ranges: tuple[int, int], step: int = 1, front: int = 0, group: tuple[str, ...] = ()) -> Samples:
    return Samples(STREAM, step, f"{step:02x}", group, front, ranges)


def write(folder: Path, *account: Samples) -> Path:
    folder.mkdir()
    with SamplesLog(folder) as log:
        for one in account:
            log.append(one)
    return folder


def test_what_was_read_skipped_and_read_twice_is_counted_over_all_peers() -> None:
    found = coverage(
        {
            "a": [samples((0, 10)), samples((20, 30), front=20)],
            "b": [samples((10, 15)), samples((28, 40), (60, 65), front=45)],
        }
    )
    assert found["peers"] == {"a": {"read": 20}, "b": {"read": 22}}
    assert (found["read"], found["read_twice"]) == (42, 2)
    assert found["skipped"] == 5 + 5  # 15 to 20, and 40 to 45; what lies ahead had no turn yet
    assert found["epochs"] == 0.45


def test_nothing_is_said_of_peers_that_draw_at_random_or_hold_other_texts() -> None:
    for stream in (replace(STREAM, order="random", sequences=0), replace(STREAM, text="other")):
        found = coverage({"a": [samples((0, 10))], "b": [replace(samples((0, 10)), stream=stream)]})
        assert (found["read"], found["skipped"], found["read_twice"], found["epochs"]) == (20, None, None, None)


def test_the_peers_of_the_last_outer_step_are_known_after_a_restart_too(tmp_path: Path) -> None:
    folder = write(tmp_path / "peer", samples((0, 1), step=1, group=("a", "b")), samples((1, 2), step=1))
    with (folder / FILE_NAME).open("a") as file:
        file.write('{"cut')
    with SamplesLog(folder) as log:
        assert log.group_of(b"\x01") == ("a", "b")
        assert log.group_of(b"\x02") == ()
        log.append(samples((2, 3), step=2, group=("a",)))
        assert log.group_of(b"\x02") == ("a",)
    assert [len(one.ranges) for one in read_samples(folder)] == [1, 1, 1]


def test_coverage_prints_a_table_or_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [
        write(tmp_path / "a", samples((0, 1000), front=2000)),
        write(tmp_path / "b", samples((1000, 2010), front=2000)),
    ]
    printed = []
    for more in ([], ["--json"]):
        monkeypatch.setattr(sys, "argv", ["prime-p2p", "coverage", *map(str, folders), *more])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        printed.append(capsys.readouterr().out)
    assert [line.split()[-1] for line in printed[0].splitlines()[2:]] == ["2,010", "0", "0", "20.00"]
    assert json.loads(printed[1])["read"] == 2010


def test_a_folder_without_an_account_or_with_a_damaged_one_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"samples.jsonl: No such file or directory; give the folder of a peer"):
        read_samples(tmp_path)
    for line in ('{"stream": {}}', "[]", '{"a": 1}', json.dumps({"stream": vars(STREAM), "ranges": [[3, 2]]})):
        (tmp_path / FILE_NAME).write_text(line + "\n")
        with pytest.raises(BadInput, match=r"samples.jsonl:1 is no line of an account of samples .*; remove the line$"):
            read_samples(tmp_path)
