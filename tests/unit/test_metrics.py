import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_p2p.errors import BadInput
from prime_p2p.monitor.metrics import MetricsLog, PhaseSeconds, RoundMetrics, read_metrics

counts = st.integers(0, 2**50)
losses = st.none() | st.floats(0, 100)
seconds = st.floats(0, 1e6)
rounds = st.builds(
    RoundMetrics,
    outer_step=counts,
    digest=st.text("0123456789abcdef", min_size=64, max_size=64),
    group=st.lists(st.text(max_size=60), max_size=5).map(tuple),
    weights=st.lists(counts, max_size=5).map(tuple),
    attempts=counts,
    train_loss=losses,
    tokens=counts,
    bytes_sent=counts,
    bytes_received=counts,
    seconds=st.builds(PhaseSeconds, seconds, seconds, seconds, seconds, seconds, seconds),
    val_loss=losses,
    given_snapshots=counts,
    given_bytes=counts,
    dropped=st.dictionaries(st.sampled_from(["frame", "record"]), st.integers(1, 2**50)),
)


def metrics(step: int = 1, **changes: object) -> RoundMetrics:
    fields: dict[str, object] = {
        "outer_step": step,
        "digest": "ab" * 32,
        "group": ("first", "second"),
        "weights": (10, 20),
        "attempts": 1,
        "train_loss": 2.5,
        "tokens": 10,
        "bytes_sent": 100,
        "bytes_received": 200,
        "seconds": PhaseSeconds(inner=3.0, gather=0.5, reduce=0.25, commit=0.125, apply=0.0625, total=4.0),
    }
    return RoundMetrics(**(fields | changes))  # type: ignore[arg-type]


@settings(deadline=None)
@given(rounds)
def test_what_is_written_reads_back_the_same(made: RoundMetrics) -> None:
    assert RoundMetrics.from_json(json.loads(json.dumps(made.to_json(), allow_nan=False))) == made


def test_each_outer_step_is_one_line_with_the_agreed_names(tmp_path: Path) -> None:
    path = tmp_path / "peer" / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.append(metrics(1))
        flushed = path.read_text()
        log.append(metrics(2, val_loss=2.25))
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert json.loads(flushed) == first
    assert " ".join(first) == (
        "outer_step digest group weights attempts train_loss tokens bytes_sent bytes_received seconds compute_share"
    )
    assert first["seconds"] == {
        "inner": 3.0, "gather": 0.5, "reduce": 0.25, "commit": 0.125, "apply": 0.0625, "total": 4.0
    }  # fmt: skip
    assert first["compute_share"] == 0.75
    assert second["val_loss"] == 2.25


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_becomes_null(loss: float) -> None:
    record = metrics(train_loss=loss, val_loss=loss).to_json()
    assert record["train_loss"] is None
    assert "val_loss" not in record


def test_an_outer_step_that_took_no_time_has_no_compute_share() -> None:
    assert metrics(seconds=PhaseSeconds()).compute_share == 0.0


def test_a_file_that_is_not_there_has_no_outer_steps(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_a_cut_last_line_is_ignored_wherever_it_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.append(metrics(1))
        log.append(metrics(2))
    content = path.read_bytes()
    first_line = content.index(b"\n") + 1
    for length in range(first_line, len(content)):
        path.write_bytes(content[:length])
        assert read_metrics(path) == [metrics(1)]


def test_a_log_that_is_opened_again_starts_on_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.append(metrics(1))
    with path.open("a") as file:
        file.write('{"outer_step": 2, "dig')
    with MetricsLog(path) as log:
        log.append(metrics(3))
    assert read_metrics(path) == [metrics(1), metrics(3)]


@pytest.mark.parametrize("line", ["{}", "[]", "nonsense", '{"outer_step": "x"}'])
def test_a_whole_line_that_is_no_record_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(metrics().to_json()) + "\n" + line + "\n")
    with pytest.raises(BadInput, match=r"metrics\.jsonl:2 is not a metrics record"):
        read_metrics(path)


def test_a_place_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="cannot write the metrics"):
        MetricsLog(tmp_path / "file" / "metrics.jsonl")
