"""The page on what to do when something is wrong has a section for everything that can be."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from prime_p2p.doctor.checks import NAMES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshoot.md").read_text(encoding="utf-8")
SECTIONS = set(re.findall(r"^### (.+)$", PAGE, re.MULTILINE))


def exit_codes() -> set[int]:
    """Those that errors are given in the code, that the command line returns, and of signals that stop a swarm."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "prime_p2p").rglob("*.py")]
    given = {int(code) for text in sources for code in re.findall(r"\bexit_code = (\d+)$", text, re.MULTILINE)}
    returned = {
        int(code) for code in re.findall(r"\bcode = (\d+)$", (ROOT / "prime_p2p/cli.py").read_text(), re.MULTILINE)
    }
    stopped = {128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    assert {1, 2, 3, 130} <= given
    assert {1, 2, 130} <= returned
    return {0} | given | returned | stopped


def test_every_line_of_the_doctor_has_a_section() -> None:
    assert set(NAMES) <= SECTIONS


def test_every_exit_code_has_a_section() -> None:
    assert {f"Exit code {code}" for code in exit_codes()} <= SECTIONS


def test_links_within_the_page_lead_somewhere() -> None:
    anchors = {section.lower().replace(" ", "-") for section in SECTIONS}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= anchors
