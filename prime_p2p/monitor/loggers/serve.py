"""What a logger's process does: lines of JSON come in, and one line goes out where something is wrong.

The first line has the logger's settings, the second says who the peer is, all others are points. The first is answered
with an empty line. The process ends when its input does, within ``FINISH`` seconds.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable

from prime_p2p.monitor.loggers.points import Point
from prime_p2p.monitor.loggers.sinks import Sink, open_sink

FINISH = 5  # seconds to bring what is left to where it belongs


def alone() -> int:
    """Keep this process, and what its package starts, from our terminal and from what stops the peer, whose end is the
    end of the input. Returns where to answer: the former standard output."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    answers = os.dup(1)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    return answers


def serve(lines: Iterable[str], answers: int) -> int:
    """Be a logger for as long as there are lines; returns the exit code. ``answers`` is a file descriptor."""
    lines = iter(lines)
    try:
        sink = open_sink(json.loads(next(lines)))
        os.write(answers, b"\n")
        for line in lines:
            _take(sink, line)
        signal.alarm(FINISH)
        sink.close()
    except Exception as error:  # noqa: BLE001 - of a package, which raises what it likes
        os.write(answers, f"{' '.join(str(error).split()) or type(error).__name__}\n".encode())
        return 1
    return 0


def _take(sink: Sink, line: str) -> None:
    try:
        record = json.loads(line)
    except ValueError:  # the rest of one that was dropped, as the pipe was full
        return
    if "peer" in record:
        sink.begin(record["peer"])
    else:
        sink.write(Point(**record))
