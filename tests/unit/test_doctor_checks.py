"""What the doctor says of each fact."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from prime_p2p.doctor import checks
from prime_p2p.doctor.facts import (
    Bandwidth,
    Clock,
    Daemon,
    Descriptors,
    Folder,
    Gpu,
    IdentityFile,
    Joined,
    Kernels,
    Machine,
    Needs,
    Network,
    Package,
    Port,
    Python,
    Reached,
    Space,
    Unknown,
)
from prime_p2p.doctor.finding import Finding, as_json, as_lines, exit_code
from prime_p2p.swarm.swarm import SwarmOptions

GB = 10**9
PYTHON = Python("3.11.7", "Linux", "x86_64", ">=3.10,<3.14", True)
GOOD_PACKAGES = [Package("torch", ">=2.6", "2.13.0", True), Package("base58", ">=2.1", "2.1.1", True)]
FILES = Descriptors(1024, 32, 235, 677)
ROOM = Space(20 * GB, 30 * GB)
FOLDER = Folder(Path("runs/tiny"), True, False, "")
KEY = IdentityFile(Path("identity.key"), "12D3KooWx", "", False)
GPU = Gpu("/dev/nvidia0", "H100", 1, 80 * GB, "570.86.15", "12.8", True)
NEEDS = Needs(memory_bytes=4 * GB, disk_bytes=5 * GB, gpu_bytes=40 * GB, cpu_bytes=60 * GB)


@dataclass(frozen=True)
class Answer:
    address: str
    works: bool
    reason: str = ""


REACHED = Reached(
    31337, [Answer("/ip4/192.0.2.1/tcp/31337", False, "refused"), Answer("/ip4/192.0.2.2/tcp/31337", True)]
)
MACHINE = Machine(PYTHON, GOOD_PACKAGES, Kernels(""), ROOM, ROOM, FOLDER)
NETWORK = Network(
    FILES, KEY, Port(31337, ""), Daemon(0.5, ""), Joined(1.0, ""), Clock(0.2), REACHED, Bandwidth(200, 300)
)


def is_a(result: str, finding: Finding, *words: str) -> None:
    assert finding.result == result
    said = f"{finding.figure}: {finding.text}; {finding.advice}"
    assert [word for word in words if word not in said] == []
    if result in ("warning", "problem"):
        assert finding.advice


def test_a_good_machine_is_ok_throughout_in_the_order_of_the_names() -> None:
    findings = checks.judge(MACHINE, NETWORK, GPU, NEEDS)
    assert tuple(finding.name for finding in findings) == checks.NAMES
    assert {finding.result for finding in findings} == {"ok"}
    assert exit_code(findings) == 0
    assert as_lines(findings).endswith("\nthis machine can be a peer")


def test_what_is_not_known_is_a_note_with_the_reason_and_stops_nothing() -> None:
    unknown = Unknown("nobody was asked")
    network = Network(unknown, unknown, unknown, unknown, unknown, unknown, unknown, unknown)
    machine = replace(MACHINE, packages=unknown, kernels=unknown, memory=unknown, disk=unknown)
    findings = checks.judge(machine, network, unknown)
    notes = [finding for finding in findings if finding.result == "note"]
    assert len(notes) == len(checks.NAMES) - 2
    assert {finding.text for finding in notes} == {"nobody was asked"}
    assert exit_code(findings) == 0


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        (replace(PYTHON, version="3.9.2", fits=False), ["3.9.2", ">=3.10,<3.14"]),
        (replace(PYTHON, system="Darwin", machine="arm64"), ["Darwin arm64", "Linux x86_64"]),
    ],
)
def test_another_python_or_system_is_a_problem(fact: Python, words: list[str]) -> None:
    is_a("problem", checks.python(fact), *words)


def test_packages_that_are_missing_or_too_old_come_with_the_command_that_helps() -> None:
    wrong = [Package("hivemind", "<1.2,>=1.1.12", None, False), Package("numpy", ">=1.26", "1.20.0", False)]
    finding = checks.packages([*GOOD_PACKAGES, *wrong])
    is_a("problem", finding, "hivemind is missing", "numpy 1.20.0 where >=1.26 is needed")
    assert finding.advice == "pip install 'hivemind<1.2,>=1.1.12' 'numpy>=1.26'"
    assert checks.packages(GOOD_PACKAGES).figure == "torch 2.13.0"  # those that matter most are shown


def test_kernels_that_are_not_compiled_are_a_note_with_the_reason() -> None:
    finding = checks.kernels(Kernels("there was no C compiler when prime-p2p was installed"))
    is_a("note", finding, "NumPy's", "there was no C compiler", "install a C compiler")
    assert checks.kernels(Kernels("")).figure == "compiled"


@pytest.mark.parametrize(("limit", "result"), [(234, "problem"), (235, "warning"), (676, "warning"), (677, "ok")])
def test_too_few_open_files_come_with_the_number_to_set(limit: int, result: str) -> None:
    is_a(result, checks.descriptors(replace(FILES, limit=limit)), str(limit), *(["ulimit -n 1024"] * (result != "ok")))


@pytest.mark.parametrize("check", [checks.memory, checks.disk])
def test_room_is_compared_with_what_the_recipe_needs_or_else_with_a_floor(check: type) -> None:
    needed = Needs(4 * GB, 4 * GB, 0, 0)
    for free, needs, result in [
        (GB, None, "ok"),
        (GB - 1, None, "warning"),
        (5 * GB, needed, "ok"),
        (5 * GB - 1, needed, "warning"),
        (4 * GB - 1, needed, "problem"),
        (0, needed, "problem"),
    ]:
        is_a(result, check(Space(free, 30 * GB), needs), "free")


def test_a_folder_that_cannot_be_used_is_a_problem_and_a_new_one_is_not() -> None:
    is_a("problem", checks.folder(replace(FOLDER, in_use=True)), "another peer", "--dir")
    is_a("problem", checks.folder(replace(FOLDER, error="Permission denied")), "Permission denied", "--dir")
    is_a("ok", checks.folder(replace(FOLDER, exists=False)), "will make it")


def test_a_key_that_cannot_be_used_is_a_problem_and_one_that_others_can_read_a_warning() -> None:
    is_a("problem", checks.identity(replace(KEY, peer_id="", error="Permission denied")), "Permission denied")
    is_a("warning", checks.identity(replace(KEY, open_to_others=True)), "chmod 600 identity.key")
    is_a("ok", checks.identity(replace(KEY, peer_id="")), "will make it")


def test_a_taken_port_is_a_problem_and_none_chosen_a_note() -> None:
    is_a("problem", checks.port(Port(31337, "cannot listen on 0.0.0.0 port 31337: in use")), "in use", "--port")
    is_a("note", checks.port(Port(0, "")), "free")


def test_a_gpu_is_compared_with_the_recipe_and_none_is_a_note() -> None:
    is_a("ok", checks.accelerator(GPU), "H100", "80.0 GB", "driver 570.86.15", "CUDA 12.8", "bf16")
    is_a("ok", checks.accelerator(replace(GPU, bf16=False)), "no bf16")
    is_a("problem", checks.accelerator(GPU, replace(NEEDS, gpu_bytes=81 * GB)), "81.0 GB")
    is_a("note", checks.accelerator(Gpu(), NEEDS), "CPU")


@pytest.mark.parametrize(
    ("driver", "cuda", "advice"),
    [("", "", "its driver"), ("570.86.15", "", "a PyTorch with CUDA"), ("470.1", "12.8", "update the driver")],
)
def test_a_gpu_that_pytorch_cannot_use_is_a_warning_with_the_reason(driver: str, cuda: str, advice: str) -> None:
    fact = Gpu("/dev/nvidia0", driver=driver, cuda=cuda, error="no kernel image")
    is_a("warning", checks.accelerator(fact), "/dev/nvidia0", "no kernel image", advice)


def test_a_daemon_that_does_not_start_is_a_problem_and_a_slow_one_a_warning() -> None:
    is_a("problem", checks.daemon(Daemon(10.0, "the libp2p daemon did not start: no answer")), "did not start")
    is_a("warning", checks.daemon(Daemon(6.0, "")), "6.0 s")


def test_a_swarm_that_does_not_answer_is_a_problem() -> None:
    is_a("problem", checks.swarm(Joined(0.0, "no bootstrap peer answers: x: refused")), "refused", "firewall")


@pytest.mark.parametrize(
    ("ahead", "result", "words"),
    [
        (-1.0, "ok", "1.0 s off"),
        (1.5, "warning", "1.5 s ahead of"),
        (-600.0, "warning", "600.0 s behind"),
        (601.0, "problem", "601.0 s ahead of"),
    ],
)
def test_a_wrong_clock_is_a_warning_until_nobody_makes_up_for_it(ahead: float, result: str, words: str) -> None:
    is_a(result, checks.clock(Clock(ahead)), words, *(["NTP"] * (result != "ok")))


def test_one_address_that_others_reach_is_enough_and_none_is_a_warning() -> None:
    is_a("ok", checks.reach(REACHED), "/ip4/192.0.2.2/tcp/31337")
    is_a("warning", checks.reach(replace(REACHED, answers=REACHED.answers[:1])), "refused", "31337", "--port")
    is_a("note", checks.reach(replace(REACHED, answers=[])), "nobody could be asked")


def test_a_slower_link_than_a_peer_says_comes_with_the_bandwidth_to_say() -> None:
    assert SwarmOptions().bandwidth == checks.DEFAULT_RATE
    assert checks.bandwidth(Bandwidth(100.0, 10.0)).advice == ""
    is_a("ok", checks.bandwidth(Bandwidth(42.4, 300.0)), "42 up, 300 Mbit/s down", "--bandwidth 42")
    is_a("warning", checks.bandwidth(Bandwidth(9.94, 300.0)), "--bandwidth 9.9")
    is_a("warning", checks.bandwidth(Bandwidth(300.0, 3.0)), "3.0 Mbit/s down")


def test_a_run_says_which_bandwidth_is_enough() -> None:
    slow, fast = replace(NEEDS, rate=2.5), replace(NEEDS, rate=250.0)
    is_a("ok", checks.bandwidth(Bandwidth(9.94, 3.0), slow), "the run needs 2.5 each way", "--bandwidth 9.9")
    is_a("warning", checks.bandwidth(Bandwidth(300.0, 240.0), fast), "the run needs 250 each way")
    (found,) = [one for one in checks.judge(MACHINE, NETWORK, GPU, fast) if one.name == "bandwidth"]
    is_a("warning", found, "200 up", "needs 250")


def test_lines_are_one_each_whatever_is_in_them_and_json_has_it_all() -> None:
    findings = [
        Finding("python", "ok", "3.11"),
        Finding("swarm", "problem", text="no\nanswer\x1b[2J", advice="check it"),
        Finding("clock", "warning", "2 s ahead", "made up for", "set it"),
    ]
    lines = as_lines(findings).splitlines()
    assert lines[0] == "ok       python  3.11"
    assert lines[1].startswith("problem  swarm   no answer")
    assert "\x1b" not in lines[1]
    assert lines[2] == "warning  clock   2 s ahead: made up for; set it"
    assert lines[3] == "this machine cannot be a peer yet: 1 problem and 1 warning"
    assert exit_code(findings) == 1
    first = json.loads(as_json(findings))["checks"][0]
    assert first == {"name": "python", "result": "ok", "figure": "3.11", "text": "", "advice": ""}
    assert as_lines(findings[::2]).endswith("this machine can be a peer, with 1 warning")
