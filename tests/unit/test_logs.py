"""What a line of the log says, and what it never does."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from prime_p2p.monitor import logs
from prime_p2p.monitor.logs import FORMATTERS, LogFormat, LogLevel

HOSTILE = "\x1b[2J\x1b]0;title\x07 first\nsecond\r\x00\u202e\u2028 \x9b31m"


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_place", logs.Place())


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """The root logger, which is at the end what it was."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield root
    root.setLevel(level)
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)
    logging.captureWarnings(False)


def record(message: str, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    about = (type(error), error, error.__traceback__) if error else None
    line = logging.LogRecord("prime_p2p.there", logging.WARNING, __file__, 1, message, arguments, about)
    line.created = 1_700_000_000.25
    return line


def text(line: logging.LogRecord) -> str:
    return FORMATTERS[LogFormat.TEXT]().format(line)


def fields(line: logging.LogRecord) -> dict[str, Any]:
    (only,) = FORMATTERS[LogFormat.JSON]().format(line).splitlines()
    parsed: dict[str, Any] = json.loads(only)
    return parsed


def raised(message: str) -> BaseException:
    try:
        raise LookupError(message)
    except LookupError as error:
        return error


def test_a_line_for_people_says_what_is_known_of_the_peer() -> None:
    assert text(record("%d of it", 3)) == "2023-11-14T22:13:20.250000Z WARNING prime_p2p.there 3 of it"
    logs.at(run="tiny")
    logs.at(peer_id="12D3KooWK9uk86iTg1VjQEvTiKpewt1oyzF5jkQkAaXEM6tqKyaC", outer_step=0)
    assert text(record("so")) == "2023-11-14T22:13:20.250000Z WARNING prime_p2p.there [tiny M6tqKyaC 0] so"


def test_a_line_for_programs_has_the_same_fields_always() -> None:
    there = {
        "time": "2023-11-14T22:13:20.250000Z",
        "level": "warning",
        "logger": "prime_p2p.there",
        "message": "3 of it",
    }
    assert fields(record("%d of it", 3)) == there | {"peer": None, "run": None, "outer_step": None}
    logs.at(peer_id="12D3KooWK9uk86iTg1VjQEvTiKpewt1oyzF5jkQkAaXEM6tqKyaC", run="tiny", outer_step=7)
    assert fields(record("%d of it", 3)) == there | {"peer": "M6tqKyaC", "run": "tiny", "outer_step": 7}


@pytest.mark.parametrize("log_format", LogFormat)
def test_what_others_write_moves_no_cursor_and_makes_no_line(log_format: LogFormat) -> None:
    logs.at(run=HOSTILE)
    line = FORMATTERS[log_format]().format(record("they say: %s", HOSTILE))
    assert line.isprintable()
    assert "first" in line
    assert "second" in line


def test_a_traceback_for_people_is_indented_whatever_is_in_the_error() -> None:
    forged = "2023-11-14T22:13:20.250000Z ERROR prime_p2p.there all is lost"
    first, *below = text(record("failed", error=raised(f"{HOSTILE}\n{forged}"))).split("\n")
    assert first.endswith("failed")
    assert below[0] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") and line.isprintable() for line in below)


def test_a_traceback_for_programs_is_one_field() -> None:
    exception = fields(record("failed", error=raised("no such thing")))["exception"]
    assert exception.startswith("Traceback (most recent call last):\n")
    assert exception.endswith("\nLookupError: no such thing")


@pytest.mark.parametrize("log_format", LogFormat)
def test_a_line_is_no_longer_than_can_be_read(log_format: LogFormat) -> None:
    line = FORMATTERS[log_format]().format(record("x" * 100_000, error=raised("y" * 100_000)))
    assert len(line) < 25_000


def test_the_level_decides_and_a_second_set_up_replaces_the_first(
    root: logging.Logger, capfd: pytest.CaptureFixture[str]
) -> None:
    logs.set_up(LogLevel.DEBUG, LogFormat.JSON)
    logs.set_up(LogLevel.INFO, LogFormat.TEXT)
    logging.getLogger("prime_p2p.there").info("this")
    logging.getLogger("prime_p2p.there").debug("not this")
    assert [line.split()[1:] for line in capfd.readouterr().err.splitlines()] == [["INFO", "prime_p2p.there", "this"]]


def test_what_python_warns_of_is_a_line_too(root: logging.Logger, capfd: pytest.CaptureFixture[str]) -> None:
    logs.set_up(log_format=LogFormat.JSON)
    warnings.warn("this is old", stacklevel=1)
    (line,) = capfd.readouterr().err.splitlines()
    assert "UserWarning: this is old" in json.loads(line)["message"]
