"""What is compared: an arm is a way to train, a setting is an arm with an inner learning rate and a seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from prime_p2p.recipe import Recipe

PEERS = 4
STEPS = 1200
"""Inner steps of each peer in an arm, and of all together in the data-parallel one, whose batch is as large as all."""

BATCH = 4

SEQUENCES = 2048
"""Validated on at the end of a run: the same for all, whatever their seed."""

USUAL_RATE, USUAL_MOMENTUM = 0.7, 0.6
"""The outer optimizer of the arms that do not say otherwise."""

Method = Literal["alone", "data-parallel", "diloco"]
Membership = Literal["fixed", "elastic", "lossy", "lossy-still", "lossy-dropped"]


@dataclass(frozen=True)
class Arm:
    """A way to train. What only DiLoCo has is empty in the other methods.

    ``elastic``: one of the peers leaves after a third of the steps, another one joins after two thirds. ``lossy``: each
    peer misses each exchange with a chance of a half, and brings what it has trained to its next one, on top of what
    the others came to, as in a swarm. Beside it: its parameters stay as they were (``-still``), or become those of the
    others (``-dropped``).
    """

    method: Method
    codec: Literal["", "fp32", "int8", "int4"] = ""
    inner_steps: int = 0  # H
    outer_rate: float = 0.0
    momentum: float = 0.0
    membership: Membership = "fixed"
    optimizer: str = "adamw"
    steps: int = STEPS
    batch: int = BATCH  # sequences of each peer in an inner step
    recipe: str = "small"  # the TOML file beside this one

    @property
    def peers(self) -> int:
        return 1 if self.method == "alone" else PEERS

    @property
    def title(self) -> str:
        """The arm in words, without what is usual."""
        others = f", batch {self.batch}" if self.batch != BATCH else ""
        others += ", Muon inside" if self.optimizer == "muon" else ""
        if self.method != "diloco":
            longer = f", {self.steps // STEPS} times the steps" if self.steps > STEPS else ""
            return {"alone": "one peer", "data-parallel": "data-parallel"}[self.method] + longer + others
        outer = f", outer rate {self.outer_rate:g}, momentum {self.momentum:g}"
        usual = (self.outer_rate, self.momentum) == (USUAL_RATE, USUAL_MOMENTUM)
        members = {"fixed": "", "elastic": ", one leaves, one joins", "lossy": ", half of the exchanges lost"}
        members |= {
            "lossy-still": f"{members['lossy']}, parameters stay",
            "lossy-dropped": f"{members['lossy']}, progress dropped",
        }
        return f"DiLoCo {self.codec}, H = {self.inner_steps}{'' if usual else outer}{members[self.membership]}{others}"


@dataclass(frozen=True)
class Setting:
    """All that decides the bytes of one run."""

    arm: Arm
    rate: float  # of the inner optimizer, at its peak
    seed: int  # of the initial parameters and of every peer's batches

    def recipe(self) -> Recipe:
        """The recipe that the peers of this run share."""
        arm = self.arm
        overrides = [
            f"run.seed={self.seed}",
            f"inner.optimizer={arm.optimizer}",
            f"inner.learning_rate={self.rate}",
            f"inner.total_steps={arm.steps}",
            f"inner.batch_size={arm.batch}",
        ]
        if arm.method == "diloco":
            overrides += [
                f"round.inner_steps={arm.inner_steps}",
                f"outer.learning_rate={arm.outer_rate}",
                f"outer.momentum={arm.momentum}",
            ]
        return Recipe.load(Path(__file__).with_name(f"{arm.recipe}.toml"), overrides)


def diloco(codec: Literal["fp32", "int8", "int4"] = "int8", inner_steps: int = 50, **changes: Any) -> Arm:
    """DiLoCo with the usual outer optimizer, and what else is to differ."""
    return Arm("diloco", codec, inner_steps, **({"outer_rate": USUAL_RATE, "momentum": USUAL_MOMENTUM} | changes))
