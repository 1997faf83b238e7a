"""The chaos suite in its short form, as a part of the tests. See ``chaos.py`` for the long one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MINUTES = float(os.environ.get("CHAOS_MINUTES", "3.5"))
CHAOS = Path(__file__).with_name("chaos.py")
DETECTION = 1.25 * 5.0  # seconds until a silent peer is lost
SLACK = 10.0  # seconds for a machine with other work

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of the suite; its lines are printed as they come."""
    path = tmp_path_factory.mktemp("chaos") / "report.json"
    command = [sys.executable, str(CHAOS), "--minutes", str(MINUTES), "--report", str(path)]
    subprocess.run(command, timeout=590, check=False)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_after_every_fault_the_survivors_go_on_and_the_struck_peer_comes_back(report: dict[str, Any]) -> None:
    assert report["faults"] >= 8
    assert [outcome["fault"] for outcome in report["outcomes"] if outcome["hang"]] == []


def test_every_kind_of_fault_was_tried(report: dict[str, Any]) -> None:
    assert [kind for kind, count in report["by_kind"].items() if not count] == []


def test_all_peers_stay_on_one_lineage_and_come_back_to_one_after_they_were_apart(report: dict[str, Any]) -> None:
    assert report["divergences"] == 0


def test_every_update_is_the_exact_weighted_mean_of_the_contributors_that_its_group_names(
    report: dict[str, Any],
) -> None:
    assert report["wrong"] == []
    assert report["means_checked"] >= 5 * report["faults"]


def test_survivors_lose_no_outer_step(report: dict[str, Any]) -> None:
    assert report["lost_outer_steps"] == 0


def test_a_fault_costs_the_survivors_its_detection_and_one_more_round(report: dict[str, Any]) -> None:
    clean = report["median_clean_round_s"]
    slow = [outcome for outcome in report["outcomes"] if outcome["wait"] > DETECTION + 2 * clean + SLACK]
    assert slow == []


def test_no_peer_ends_that_was_not_struck(report: dict[str, Any]) -> None:
    assert report["unexpected"] == []


def test_nothing_is_left_when_the_peers_have_been_told_to_stop(report: dict[str, Any]) -> None:
    assert report["left_behind"] == {"not_in_good_order": [], "processes": [], "folders": []}


def test_a_peer_that_lived_through_it_holds_no_more_than_before(report: dict[str, Any]) -> None:
    growth = report["growth"]
    assert growth["processes"] >= 1
    assert growth["memory_share"] < 0.10
    assert growth["descriptors"] < 40
    assert growth["tasks"] < 40
