"""``prime-p2p bench`` as a user runs it, with sizes so small that the figures mean little."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from processes import PATIENCE, Process

from prime_p2p.bench.outer import PHASES

PARAMS = 200_000
CONTENDERS = ("ours", "raw_floor", "gloo_float32")
SMALL = ("--peers", "2", "--params", "200K")

Start = Callable[..., Process]
needs_tun = pytest.mark.skipif(
    not os.access("/dev/net/tun", os.R_OK | os.W_OK), reason="/dev/net/tun cannot be opened, which a delay takes"
)


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """A variable in the environment of all that this test starts, however far down."""
    name = f"PRIME_P2P_TEST_{os.getpid()}_{time.monotonic_ns()}"
    monkeypatch.setenv(name, "1")
    return name


@pytest.fixture
def start(mark: str) -> Iterator[Start]:
    """Starts a benchmark, and leaves none behind."""
    started: list[Process] = []

    def start_with(*arguments: str) -> Process:
        started.append(Process("bench", *arguments))
        return started[-1]

    yield start_with
    for process in started:
        process.end()


def only(*names: str) -> list[str]:
    return [word for name in names for word in ("--only", name)]


def output(process: Process, code: int = 0) -> str:
    """What it prints until it ends."""
    assert process.wait() == code, process.stderr
    return "\n".join(process.rest())


def answer(process: Process) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output(process))
    return found


def until(process: Process, said: str) -> list[psutil.Process]:
    """Wait for a line of its progress; all processes that it has then."""
    deadline = time.monotonic() + PATIENCE
    while said not in process.stderr:
        assert process.process.poll() is None, process.stderr
        assert time.monotonic() < deadline, process.stderr
        time.sleep(0.02)
    return process.children()


def kill(process: Process, *options: str) -> None:
    """Kill the one process of a benchmark that was started with these options."""
    (found,) = (one for one in process.children() if all(option in " ".join(one.cmdline()) for option in options))
    found.send_signal(signal.SIGKILL)


def marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if mark in process.environ():
                found.append(process)
    return found


def still_there(processes: list[psutil.Process], mark: str) -> list[psutil.Process]:
    """Those of these processes, and of all that this test has started, that do not end by themselves."""
    _, alive = psutil.wait_procs([*processes, *marked(mark)], timeout=10)
    return [one for one in {*alive, *marked(mark)} if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def test_allreduce_measures_each_contender(start: Start) -> None:
    found = answer(start("allreduce", *SMALL, "--rounds", "2", *only(*CONTENDERS), "--json"))
    assert list(found) == ["place", *CONTENDERS, "share_of_link", "ratios"]
    for name in CONTENDERS:
        assert found[name]["failure"] == ""
        assert len(found[name]["each"]) == 2
        assert found[name]["seconds"] > 0
        # All of it passes the network, with headers and little else.
        assert found[name]["wire"] > (0.8 if name == "gloo_float32" else 0.2) * 1e6
    ours = found["ours"]
    assert ours["equal"] is True
    assert ours["error"] < 0.02
    assert ours["sent"] <= 1.01 * PARAMS + 500  # 2 * (G - 1) / G vectors of a byte each, the scales, the frames
    assert ours["wire"] < 1.1 * ours["sent"] + 5000
    assert found["gloo_float32"]["error"] < 1e-6
    assert set(found["ratios"]) == {"hivemind_float16", "hivemind_8bit", "gloo_float32", "raw_floor"}
    assert found["ratios"]["hivemind_8bit"] is None
    assert found["ratios"]["gloo_float32"] == found["gloo_float32"]["seconds"] / ours["seconds"]
    assert found["ratios"]["raw_floor"] == ours["seconds"] / found["raw_floor"]["seconds"]
    assert found["share_of_link"] is None


def test_allreduce_prints_a_table_and_says_its_progress_unless_told_not_to(start: Start) -> None:
    process = start("allreduce", *SMALL, "--rounds", "1", "--codec", "int4", *only("ours"), "--quiet")
    lines = output(process).splitlines()
    assert process.stderr == ""
    assert lines[0] == "2 peers, 0.2 M parameters, int4, medians of 1 rounds"
    assert lines[2].startswith("|  | seconds | CPU-s a peer | MB sent a peer |")
    assert lines[4].startswith("| ours | 0.")
    assert lines[4].endswith(" yes |")


@needs_tun
def test_allreduce_over_links_with_a_rate_and_a_delay(start: Start) -> None:
    links = ("--rate", "100", "--round-trip", "20")
    found = answer(start("allreduce", *SMALL, "--rounds", "2", *links, *only("ours"), "--json"))
    assert found["place"]["rates"] == [100.0, 100.0]
    assert found["ours"]["equal"] is True
    assert found["ours"]["seconds"] > 0.02  # a way there and one back
    assert 0 < found["share_of_link"] < 1  # how much of it depends on what else the machine does


def test_allreduce_over_unequal_links_gives_unequal_parts(start: Start) -> None:
    links = ("--rate", "400", "--rate", "400", "--rate", "100")
    found = answer(
        start("allreduce", "--peers", "3", "--params", "200K", "--rounds", "1", *links, *only("ours"), "--json")
    )
    assert found["place"]["setup"]["bandwidths"] == [400.0, 400.0, 100.0]
    assert found["ours"]["equal"] is True
    assert 0 < found["share_of_link"] < 1.5  # so short a round may be over before its burst is


def test_hiveminds_averager_is_measured_too(start: Start) -> None:
    found = answer(
        start("allreduce", "--peers", "2", "--params", "20K", "--rounds", "1", *only("hivemind_float16"), "--json")
    )
    assert found["hivemind_float16"]["failure"] == ""
    assert found["hivemind_float16"]["error"] < 1e-3
    assert set(found["ratios"].values()) == {None}


def test_gather_forms_groups(start: Start) -> None:
    (found,) = answer(start("gather", "--peers", "2", "--rounds", "2", "--json"))["gather"]
    assert found["peers"] == 2
    assert found["whole"] is True
    assert 0 < found["formed"] <= found["longest"]
    assert found["formed"] <= found["committed"]


def test_outer_makes_outer_steps(start: Start) -> None:
    found = answer(start("outer", *SMALL, "--rounds", "2", "--json"))
    assert found["equal"] is True
    assert set(found["phases"]) == set(PHASES)
    assert all(seconds >= 0 for seconds in found["phases"].values())
    assert sum(found["phases"].values()) < 2 * found["seconds"]
    assert PARAMS < found["sent"] < 1.05 * PARAMS + 5000
    assert found["ms_per_million"] == pytest.approx(found["seconds"] * 1e3 / 0.2)


def test_codec_has_a_row_for_each_kernel(start: Start) -> None:
    lines = output(start("codec", "--params", "200K", "--rounds", "2")).splitlines()
    assert lines[0] == "| kernel | codec | ms | GB/s of float32 |"
    assert [line.split(" | ")[1] for line in lines[2:]] == ["int8"] * 5 + ["int4"] * 5 + [""]


def test_state_is_fetched_from_a_donor(start: Start) -> None:
    found = answer(start("state", "--params", "500K", "--donors", "1", "--rounds", "1", "--no-hivemind", "--json"))
    assert (found["params"], found["hivemind"]) == (500_000, {"seconds": None, "each": []})
    (one,) = found["fetched"]
    assert one["donors"] == 1
    assert min(one[key] for key in ("snapshot", "raw", "raw_buffer")) > 0
    assert one["share"] == one["raw"] / one["snapshot"]
    assert one["share_of_buffer"] == one["raw_buffer"] / one["snapshot"]
    assert one["longest_wait"] >= 0
    assert 1 / 9 < one["update"]["share"] < 1 / 7
    assert one["hivemind_ratio"] is None


def test_state_beside_hivemind_as_a_table(start: Start) -> None:
    lines = output(start("state", "--params", "20K", "--donors", "2", "--rounds", "1")).splitlines()
    assert lines[0] == "0.02 M parameters, medians of 1 rounds"
    assert lines[4].startswith("| 2 | 0.")
    assert lines[4].endswith(" times as long |")
    assert lines[6].startswith("- hivemind loads as many bytes from one donor in ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("allreduce", *SMALL, *only("ours", "raw_floor")), "raw_floor: round 1"),
        (("allreduce", *SMALL, "--rate", "100", *only("ours")), "ours: round 1"),
        (("allreduce", *SMALL, *only("ours", "raw_floor")), "raw_floor: 2 processes begin"),
        (("state", "--params", "20K", "--donors", "1", "--no-hivemind"), "round 1"),
    ],
    ids=["rounds", "lab", "starting", "state"],
)
def test_ctrl_c_ends_everything(start: Start, mark: str, arguments: tuple[str, ...], said: str) -> None:
    process = start(*arguments, "--rounds", "1000")
    descendants = until(process, said)
    assert len(marked(mark)) >= 3  # this one and at least two that work
    began = time.monotonic()
    process.signal(signal.SIGINT)
    assert process.wait() == 130
    assert time.monotonic() - began < 15
    assert still_there(descendants, mark) == []
    assert "Traceback" not in process.stderr
    assert process.rest() == []


def test_a_contender_whose_process_is_killed_says_so_and_the_others_go_on(start: Start, mark: str) -> None:
    process = start("allreduce", *SMALL, "--rounds", "40", *only("raw_floor", "ours"), "--json")
    descendants = until(process, "ours: round 0")
    kill(process, '"contender": "raw_floor"', '"rank": 1')
    found = answer(process)
    assert found["raw_floor"]["failure"].startswith("raw_floor ")
    assert found["raw_floor"]["seconds"] is None
    assert found["ours"]["failure"] == ""
    assert len(found["ours"]["each"]) == 40
    assert found["ratios"]["raw_floor"] is None
    assert still_there(descendants, mark) == []


def test_where_nothing_is_left_to_measure_one_line_says_why(start: Start, mark: str) -> None:
    process = start("state", "--params", "20K", "--donors", "1", "--no-hivemind", "--rounds", "1000")
    descendants = until(process, "round 1")
    kill(process, "bench.state_donor")
    assert output(process, code=1) == ""
    assert process.stderr.splitlines()[-1].startswith("prime-p2p: ")
    assert "Traceback" not in process.stderr
    assert still_there(descendants, mark) == []
