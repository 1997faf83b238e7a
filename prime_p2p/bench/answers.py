"""How a process of a team answers, and learns what it is to do: lines of JSON on its standard streams."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def answering() -> Iterator[Callable[[dict[str, Any]], None]]:
    """Gives what sends an answer; an error inside is the last one, and goes no further."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is not an answer

    def answer(what: dict[str, Any]) -> None:
        print(json.dumps(what), file=answers, flush=True)

    try:
        yield answer
    except BrokenPipeError:
        logger.debug("nobody listens any more")
    except Exception as error:
        logger.debug("this process fails", exc_info=True)
        with contextlib.suppress(BrokenPipeError):
            answer({"error": f"{type(error).__name__}: {error}"})


def questions() -> Iterator[dict[str, Any]]:
    """What this process is asked, until its standard input ends."""
    return map(json.loads, sys.stdin)
