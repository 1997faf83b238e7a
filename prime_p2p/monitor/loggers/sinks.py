"""Where points go: event files of TensorBoard, or a run of Weights & Biases. Only a logger's own process comes here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol

from prime_p2p.errors import BadInput
from prime_p2p.monitor.loggers.points import Point

ANSWER_WITHIN = 30.0  # seconds for the server of Weights & Biases to take a new run


class Sink(Protocol):
    """Its package may raise anything; the logger is over then."""

    def begin(self, peer_id: str) -> None:
        """The peer has joined its run."""

    def write(self, point: Point) -> None: ...

    def close(self) -> None: ...


def open_sink(settings: Mapping[str, Any]) -> Sink:
    """The sink that settings (of ``settings.wanted``) are of.

    Raises BadInput where its package is missing, or nobody is logged in.
    """
    return TensorBoard(settings["folder"]) if settings["sink"] == "tensorboard" else WeightsAndBiases(settings)


def _missing(package: str) -> BadInput:
    return BadInput(f'the package {package} is missing: pip install "prime_p2p[{package}]"')


class TensorBoard:
    """Event files in a folder; those of a peer that is started again go beside the ones before."""

    def __init__(self, folder: str) -> None:
        try:
            from tensorboard.summary import Writer  # TensorBoard's own, which needs neither torch nor TensorFlow
        except ImportError:
            raise _missing("tensorboard") from None
        self._writer = Writer(folder)

    def begin(self, peer_id: str) -> None:
        """An event file says nothing of who writes it."""

    def write(self, point: Point) -> None:
        for name, value in point.figures.items():
            self._writer.add_scalar(name, value, point.step)
        if point.axis == "outer_step":
            self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run of a project, in the group of those of the same prime-p2p run.

    Nothing is sent, or kept to be sent, but points and the recipe: not the command line, the machine or its packages,
    and no report of errors either unless WANDB_ERROR_REPORTING asks for it.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        try:
            import wandb
        except ImportError:
            raise _missing("wandb") from None
        self._init = wandb.init
        self._settings = settings
        self._run: Any = None
        online = settings["mode"] == "online"
        if online and not wandb.login(prompt=False):
            raise BadInput('nobody is logged in: run "wandb login", or set logging.wandb_mode to "offline"')
        self._quiet = wandb.Settings(
            mode=settings["mode"],
            console="off",
            silent=True,
            init_timeout=ANSWER_WITHIN,
            disable_git=True,
            disable_code=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )

    def begin(self, peer_id: str) -> None:
        wanted, run = self._settings, self._settings["run"]
        self._run = self._init(
            project=wanted["project"],
            group=run,
            name=f"{run}-{peer_id[-8:]}",
            dir=wanted["folder"],
            config=wanted["recipe"] | {"peer": peer_id},
            settings=self._quiet,
        )
        for axis in ("outer", "inner"):
            self._run.define_metric(f"{axis}/*", step_metric=f"{axis}_step")

    def write(self, point: Point) -> None:
        self._run.log({**point.figures, point.axis: point.step})

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
