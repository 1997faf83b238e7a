from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from prime_p2p.bench import allreduce, state, usage, vectors
from prime_p2p.bench.allreduce import CONTENDERS, Measured, ratios
from prime_p2p.bench.place import Links, Place
from prime_p2p.bench.rounds import Rounds, Setup
from prime_p2p.bench.state import Fetched, MissedUpdate, Question, Round, StateMeasured
from prime_p2p.bench.tables import shown, table
from prime_p2p.errors import BadInput

Cli = Callable[..., int]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("allreduce --params 0", "--params 0"),
        ("allreduce --params x", "--params x"),
        ("allreduce --params 1.5", "--params 1.5"),
        ("outer --params -1K", "--params -1K"),
        ("codec --params 1e6", "--params 1e6"),
        ("state --params 1000B", "--params 1000B"),
        ("state --donors 0", "--donors"),
        ("allreduce --codec int3", "int3"),
        ("outer --codec int3", "int3"),
        ("allreduce --only nobody", "--only nobody"),
        ("allreduce --peers 1", "--peers 1"),
        ("allreduce --peers 65", "--peers"),
        ("gather --peers 1", "--peers"),
        ("allreduce --rounds 0", "--rounds"),
        ("allreduce --params 1K --rate 10 --rate 20", "--rate"),
        ("allreduce --params 1K --rate -1", "--rate"),
        ("allreduce --params 1K --rate nan", "--rate"),
        ("outer --params 1K --peers 2 --round-trip inf", "inf"),
        ("allreduce --params 1K --rate 10 --congestion nobody", "'nobody'"),
        ("allreduce --params 1K --congestion bbr", "--congestion"),
        ("allreduce --params 90B", "GB of memory"),
        ("no-such-benchmark", "no-such-benchmark"),
    ],
)
def test_a_mistake_of_the_user_is_one_line_and_exit_code_2(
    arguments: str, named: str, run: Cli, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("bench", *arguments.split()) == 2
    output = capfd.readouterr()  # what this program says when it runs itself once more in a lab is in it as well
    assert output.out == ""
    assert output.err.startswith("prime-p2p: ")
    assert output.err.count("\n") == 1
    assert named in output.err


def test_what_this_machine_has_no_memory_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "available_memory", lambda: 10_000_000_000)
    allreduce.check_memory(Setup(2, 1000), CONTENDERS)
    allreduce.check_memory(Setup(4, 50_000_000), ("ours",))
    with pytest.raises(BadInput, match=r"that takes about [0-9]+ GB of memory and 10 GB are free"):
        allreduce.check_memory(Setup(4, 50_000_000), CONTENDERS)
    with pytest.raises(BadInput, match="fewer --peers"):
        allreduce.check_memory(Setup(32, 1000), CONTENDERS)


def test_a_table_fills_short_rows_up() -> None:
    assert table(["", "seconds"], [["ours", "1.5"], ["other"]]) == [
        "|  | seconds |",
        "| --- | --- |",
        "| ours | 1.5 |",
        "| other |  |",
    ]


def test_a_number_is_shown_in_its_unit_and_none_as_nothing() -> None:
    assert shown(1_540_000, ".1f", 1e6) == "1.5"
    assert shown(0.0, ".2f") == "0.00"
    assert shown(None, ".2f") == ""


def test_ratios_are_times_as_long_as_ours_and_ours_as_the_raw_floor() -> None:
    seconds = {"ours": 2.0, "raw_floor": 1.6, "hivemind_float16": 9.0, "hivemind_8bit": 8.0, "gloo_float32": 3.0}
    found = ratios({name: Measured(seconds=each) for name, each in seconds.items()})
    assert found == {"hivemind_float16": 4.5, "hivemind_8bit": 4.0, "gloo_float32": 1.5, "raw_floor": 1.25}


def test_there_is_no_ratio_to_what_was_not_measured_or_failed() -> None:
    ours, other = Measured(seconds=2.0), Measured(seconds=3.0)
    assert set(ratios({}).values()) == {None}
    assert set(ratios({"gloo_float32": other}).values()) == {None}
    found = ratios({"ours": ours, "gloo_float32": other, "hivemind_8bit": Measured(seconds=1.0, failure="broken")})
    assert found == {"hivemind_float16": None, "hivemind_8bit": None, "gloo_float32": 1.5, "raw_floor": None}


def test_what_failed_says_so_in_its_row_and_nothing_else() -> None:
    results = {"ours": Measured(seconds=0.5, sent=2e6, error=0.01, equal=True), "raw_floor": Measured(failure="gone")}
    lines = allreduce.as_markdown(Place(Setup(2, 1_000_000), (), 0.0), results).splitlines()
    assert lines[0] == "2 peers, 1 M parameters, int8, medians of 5 rounds"
    assert lines[4:6] == [
        "| ours | 0.500 |  | 2.0 |  |  | 0.0100 | yes |",
        "| raw_floor | gone |  |  |  |  |  |  |",
    ]
    assert not [line for line in lines if line.startswith("- ")]


def test_what_is_no_mean_counts_as_failed() -> None:
    answers = [[{"began": 0.0, "ended": 1.0, "cpu": 1.0, "memory": 5} for _ in range(2)]]
    checks = [{"digest": "a", "error_of_mean": 0.9}, {"digest": "a", "error_of_mean": None}]
    found = allreduce._summed_up(Rounds(answers, checks, [10.0]))
    assert found.failure == "what came out is not the mean"
    assert (found.seconds, found.reduce, found.sent, found.equal) == (1.0, None, None, True)


def test_a_round_is_from_the_first_that_begins_to_the_last_that_is_done() -> None:
    peers = [{"began": 1.0, "ended": 3.0, "cpu": 1.0}, {"began": 1.5, "ended": 4.0, "cpu": 2.0}]
    rounds = Rounds([peers, peers, [{"began": 10.0, "ended": 11.0, "cpu": 3.0}] * 2])
    assert rounds.seconds == [3.0, 3.0, 1.0]
    assert rounds.median("cpu") == 1.5
    assert rounds.median("cpu", max) == 2.0
    assert rounds.span("began", "ended") == 3.0
    assert rounds.span("reduce_began", "reduce_ended") is None


def test_vectors_are_the_same_each_time_and_differ_between_peers() -> None:
    one = vectors.vector(1, 3_000_000)
    assert np.array_equal(one, vectors.vector(1, 3_000_000))
    assert np.array_equal(one[:1000], vectors.vector(1, 1000))
    assert abs(float(one.std()) - 0.01) < 1e-4
    assert abs(float(np.corrcoef(one, vectors.vector(2, 3_000_000))[0, 1])) < 0.01


def test_the_error_of_the_exact_mean_is_nothing_and_that_of_another_vector_is_large() -> None:
    n = 2_500_000
    each = [vectors.vector(rank, n) for rank in range(3)]
    mean = np.mean(each, axis=0, dtype=np.float64).astype(np.float32)
    assert vectors.relative_error(mean, 3) < 1e-6
    assert vectors.relative_error(mean * np.float32(1.1), 3) == pytest.approx(0.1, rel=1e-3)
    assert vectors.relative_error(np.zeros_like(mean), 3) == 1.0
    assert vectors.relative_error(each[0], 3) > 0.5
    assert vectors.relative_error(mean, 2) > 0.5


def test_the_processor_time_of_this_process_grows_as_it_works() -> None:
    before = usage.cpu_seconds()
    assert before > 0
    while usage.cpu_seconds() < before + 0.05:
        sum(range(100_000))


MEMORY = """
import numpy as np
from prime_p2p.bench import usage

usage.forget_peak()
before = usage.memory_bytes(peak=True)
used = np.ones(20_000_000, np.float32)
assert usage.memory_bytes() > before + 0.8 * used.nbytes
del used
assert usage.memory_bytes(peak=True) > before + 60_000_000
usage.forget_peak()
assert usage.memory_bytes(peak=True) < before + 40_000_000
"""


def test_memory_that_was_used_for_a_while_is_in_the_peak_until_that_is_forgotten() -> None:
    """In a process of its own: others of this one's children may end at any time."""
    subprocess.run([sys.executable, "-c", MEMORY], check=True, timeout=60)


def test_the_machine_has_some_memory_and_a_loopback_device() -> None:
    assert 10_000_000 < usage.available_memory() < 1e15
    assert usage.wire_bytes() >= 0
    assert usage.device_of("127.0.0.1") == "lo"
    with pytest.raises(LookupError, match=r"192\.0\.2\.1"):
        usage.device_of("192.0.2.1")


@pytest.mark.parametrize(
    ("rates", "expected"),
    [((), ()), ((5.0,), (5.0,) * 3), ((5.0, 6.0, 7.0), (5.0, 6.0, 7.0))],
)
def test_one_rate_is_that_of_all_peers(rates: tuple[float, ...], expected: tuple[float, ...]) -> None:
    assert Links(rates).of_peers(3) == expected


def test_a_rate_of_nothing_among_others_is_refused() -> None:
    with pytest.raises(BadInput, match="above 0 for every peer"):
        Links((5.0, 6.0, 0.0)).of_peers(3)


def test_rates_for_some_of_the_peers_are_refused() -> None:
    with pytest.raises(BadInput, match="one for each of the 4 peers, not 2"):
        Links((1.0, 2.0)).of_peers(4)


def test_the_best_time_of_equal_links_is_that_of_what_everybody_sends() -> None:
    setup = Setup(4, 1_000_000)
    place = Place(setup, (80.0,) * 4, 0.0)
    assert setup.bytes_of_vector == pytest.approx(1_004_000, rel=1e-3)  # a byte an element, a scale a block
    assert place.best_seconds == pytest.approx(1.5 * setup.bytes_of_vector / 10e6, rel=1e-4)


def test_the_best_time_of_unequal_links_is_that_of_the_slowest_with_its_part() -> None:
    # 4 vectors are to be sent by three peers, in 4 / 120 of the time that one takes at 1 Mbit/s.
    rates = (40.0, 40.0, 40.0)
    unit = Setup(3, 1_000_000).bytes_of_vector * 8e-6
    assert Place(Setup(3, 1_000_000), rates, 0.0).best_seconds == pytest.approx(unit * 4 / 120, rel=1e-4)
    # With 60, 60 and 40 they are all done at once: parts of 0.5, 0.5 and 0 give 1.5, 1.5 and 1 vectors.
    rates = (60.0, 60.0, 40.0)
    split = Place(Setup(3, 1_000_000, bandwidths=rates), rates, 0.0)
    assert split.best_seconds == pytest.approx(unit / 40, rel=1e-4)
    # In equal parts each sends 4 / 3 vectors, and the slowest is last.
    assert Place(Setup(3, 1_000_000), rates, 0.0).best_seconds == pytest.approx(unit * 4 / 3 / 40, rel=1e-4)


def test_where_a_link_has_no_limit_there_is_no_best_time() -> None:
    assert Place(Setup(2, 1000), (), 20.0).best_seconds is None
    assert Place(Setup(2, 1000), (10.0, 0.0), 0.0).best_seconds is None
    assert allreduce.share_of_link(Place(Setup(2, 1000), (), 0.0), {"ours": Measured(reduce=1.0)}) is None


def test_the_share_of_a_link_is_the_best_time_over_that_of_our_reduce() -> None:
    place = Place(Setup(2, 1_000_000), (8.0, 8.0), 0.0)
    best = place.best_seconds
    assert best is not None
    assert allreduce.share_of_link(place, {"ours": Measured(seconds=9.0, reduce=2 * best)}) == 0.5
    assert allreduce.share_of_link(place, {"raw_floor": Measured(seconds=9.0)}) is None


def test_a_place_says_what_its_links_are() -> None:
    setup = Setup(2, 1)
    assert Place(setup, (), 0.0).words == ""
    assert Place(setup, (200.0, 50.0), 20.0).words == " at 200, 50 Mbit/s with a round trip of 20 ms"


ROUNDS = (Round(2.0, 1.0, 0.5), Round(4.0, 1.0, 2.0), Round(3.0, 3.0, 0.3))


def fetched(hivemind: tuple[float, ...]) -> StateMeasured:
    one = Fetched(2, ROUNDS, 0.25, MissedUpdate(0.5, 0.4, 0.125))
    return StateMeasured(Question(1_000_000, (2,), 3, bool(hivemind)), (one,), hivemind)


def test_the_figures_of_a_state_are_medians_and_its_shares_those_of_each_round() -> None:
    found = fetched((9.0, 6.0, 3.0))
    as_json = json.loads(json.dumps(state.as_json(found)))
    assert as_json["hivemind"] == {"seconds": 6.0, "each": [9.0, 6.0, 3.0]}
    (one,) = as_json["fetched"]
    assert (one["snapshot"], one["raw"], one["raw_buffer"]) == (3.0, 1.0, 0.5)
    assert (one["share"], one["share_of_buffer"]) == (0.5, 0.25)
    assert one["update"] == {"seconds": 0.5, "cpu": 0.4, "share": 0.125}
    assert one["hivemind_ratio"] == 2.0
    assert one["longest_wait"] == 0.25


def test_the_table_of_a_state_leaves_hivemind_out_where_it_was_not_measured() -> None:
    with_it, without = (state.as_markdown(fetched(each)).splitlines() for each in ((6.0,), ()))
    row = "| 2 | 3.000 | 3 | 1.000 | 0.50 | 0.500 | 0.25 | 0.250 | 0.50 | 0.40 | 1/8.0 |"
    assert with_it[4] == f"{row} 2.0 times as long |"
    assert with_it[6] == "- hivemind loads as many bytes from one donor in 6.00 s, 1 MB/s"
    assert without[4:] == [f"{row}  |"]
