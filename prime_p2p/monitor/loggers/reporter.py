"""What of a peer's news goes to its loggers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prime_p2p.errors import BadInput
from prime_p2p.monitor.events import Progress
from prime_p2p.monitor.loggers import points
from prime_p2p.monitor.loggers.process import LoggerProcess
from prime_p2p.monitor.metrics import RoundMetrics
from prime_p2p.monitor.reporter import Reporter, Silent
from prime_p2p.recipe import Recipe

INTERVAL = 1.0  # seconds between two points of inner steps


class LoggerReporter(Silent):
    """A ``monitor.reporter.Reporter`` that hands each outer step to loggers, and an inner step now and then.

    ``inner_steps_before`` gives the inner steps of the run before an outer step.
    """

    def __init__(
        self,
        tell: Callable[[dict[str, Any]], None],
        inner_steps_before: Callable[[int], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell = tell
        self._inner_steps_before = inner_steps_before
        self._clock = clock
        self._due = 0.0

    def ready(self, peer_id: str, addresses: Sequence[str]) -> None:
        self._tell({"peer": peer_id})

    def progress(self, progress: Progress) -> None:
        if self._clock() >= self._due:
            self._due = self._clock() + INTERVAL
            before = self._inner_steps_before(progress.outer_step)
            self._tell(asdict(points.of_inner_step(progress, before)))

    def outer_step(self, metrics: RoundMetrics) -> None:
        self._tell(asdict(points.of_outer_step(metrics)))


@contextmanager
def open_loggers(recipe: Recipe, directory: Path) -> Iterator[list[Reporter]]:
    """The loggers that a recipe asks for, of the peer whose folder this is; they end with the context.

    Raises BadInput where one cannot be used: its package is missing, say, or its folder cannot be made.
    """
    before = recipe.round.inner_steps_before
    with ExitStack() as owned:
        processes = [owned.enter_context(closing(LoggerProcess(*one))) for one in wanted(recipe, directory)]
        yield [LoggerReporter(process.tell, before) for process in processes]


def wanted(recipe: Recipe, directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and settings of each logger that a recipe asks for; folders are made. Raises BadInput."""
    asked = recipe.logging
    if asked.tensorboard:
        folder = _made(directory / asked.tensorboard, "tensorboard")
        yield "tensorboard", {"sink": "tensorboard", "folder": folder}
    if asked.wandb:
        yield (
            "wandb",
            {
                "sink": "wandb",
                "folder": _made(directory, "wandb"),
                "project": asked.wandb,
                "mode": asked.wandb_mode,
                "run": recipe.run.name,
                "recipe": recipe.model_dump(mode="json"),
            },
        )


def _made(folder: Path, key: str) -> str:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"logging.{key}: {folder}: {error.strerror}; name a folder that can be made") from None
    return str(folder.absolute())
