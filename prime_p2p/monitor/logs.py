"""The log of a process, on standard error: each line says when, how bad, from where, and which peer of which run.

Text is for people, JSON (an object a line) for programs. Other peers have a hand in what is logged, so no control
character goes out as it came, and nothing in a message can pass for a line of its own: a traceback is indented.

No secret is ever an argument of a log call, in the text of an error, or in a ``repr``; a private key is none of them.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum

from prime_p2p.monitor.outlet import Outlet
from prime_p2p.monitor.text import printable, visible

_STANDARD_ERROR = 2
_LONGEST = 2000  # characters of a message
_LONGEST_TRACEBACK = 20_000  # characters
_SHORT_ID = 8  # characters of a peer id, its last: they tell peers apart, the first are the same for all


class LogFormat(str, Enum):
    """How a line of the log looks."""

    TEXT = "text"
    JSON = "json"


class LogLevel(str, Enum):
    """How bad something must be to be in the log."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass
class Place:
    """Where this process is, as far as it is known: the end of its peer id, its run, and its outer step there."""

    peer: str | None = None
    run: str | None = None
    outer_step: int | None = None


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        known = [str(part) for part in (_place.run, _place.peer, _place.outer_step) if part is not None]
        place = f" [{printable(' '.join(known))}]" if known else ""
        line = f"{_time(record)} {record.levelname} {record.name}{place} {printable(record.getMessage(), _LONGEST)}"
        below = _traceback(self, record).splitlines()
        return "\n".join([line, *(f"    {visible(one)}" for one in below)])


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:_LONGEST],
            "peer": _place.peer,
            "run": _place.run,
            "outer_step": _place.outer_step,
        }
        exception = _traceback(self, record)
        return json.dumps(line | ({"exception": exception} if exception else {}))


FORMATTERS: dict[LogFormat, type[logging.Formatter]] = {LogFormat.TEXT: _Text, LogFormat.JSON: _Json}


class _Handler(logging.Handler):
    """Never waits for long, and never fails: a log that nobody reads must not hold up a round."""

    def __init__(self) -> None:
        super().__init__()
        self._outlet = Outlet(_STANDARD_ERROR)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._outlet.write(self.format(record))
        except (TypeError, ValueError, LookupError):  # a message does not fit its arguments, say
            self.handleError(record)


def set_up(level: LogLevel = LogLevel.WARNING, log_format: LogFormat = LogFormat.TEXT) -> None:
    """Log on standard error from now on, what Python warns of as well. Called again, it replaces what it did before."""
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, _Handler)]:
        root.removeHandler(handler)
    handler = _Handler()
    handler.setFormatter(FORMATTERS[log_format]())
    root.addHandler(handler)
    root.setLevel(level.name)
    logging.captureWarnings(True)


_place = Place()


def at(*, peer_id: str | None = None, run: str | None = None, outer_step: int | None = None) -> None:
    """From now on the lines of this process say this of it; what is not given stays as it was."""
    if peer_id is not None:
        _place.peer = peer_id[-_SHORT_ID:]
    if run is not None:
        _place.run = run
    if outer_step is not None:
        _place.outer_step = outer_step


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """The traceback of the error that a record is about, and the stack it was asked for; its end, if it is too long."""
    texts = [
        formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else "",
        formatter.formatStack(record.stack_info) if record.stack_info else "",
    ]
    return "\n".join(text for text in texts if text)[-_LONGEST_TRACEBACK:]
