"""Which runs the study needs, the most informative first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from scripts.convergence.arms import PEERS, STEPS, Arm, Setting, diloco
from scripts.convergence.results import Outcome

Found = Mapping[Setting, Outcome]

START = (0.008, 0.004, 0.016)
"""The rates tried first. They go on by factors of 2 until the best has a worse one on both sides."""
LOWEST, HIGHEST = 0.0002, 0.3  # rates beyond which nothing is tried
TUNED_ON = 1  # the seed

ALONE = Arm("alone")
ALONE_LONGER = Arm("alone", steps=PEERS * STEPS)
DATA_PARALLEL = Arm("data-parallel")
FP32, INT8, INT4 = diloco("fp32"), diloco("int8"), diloco("int4")
PERIODS = tuple(diloco(inner_steps=steps) for steps in (10, 5, 25, 100))
OFTEN = PERIODS[0]
"""What the outer optimizer is varied of: it makes enough outer steps for a momentum to show what it does."""
OUTER = tuple(
    diloco(inner_steps=OFTEN.inner_steps, outer_rate=rate, momentum=momentum)
    for momentum in (0.6, 0.8, 0.9)
    for rate in (0.4, 0.7, 1.0)
    if (rate, momentum) != (OFTEN.outer_rate, OFTEN.momentum)
)
AVERAGING = diloco(inner_steps=OFTEN.inner_steps, outer_rate=1.0, momentum=0.0)
"""The mean of the peers' parameters, without an outer optimizer."""
MUON = (
    Arm("data-parallel", optimizer="muon"),
    diloco(optimizer="muon"),
    *(diloco(inner_steps=steps, optimizer="muon") for steps in (10, 5)),
)
LARGE = 16
LARGE_BATCHES = (
    Arm("data-parallel", batch=LARGE),
    diloco(inner_steps=10, batch=LARGE),
    diloco(inner_steps=50, batch=LARGE),
)
"""Where a batch is 4 times as large, the noise of a peer's gradients says less, and other peers' bring less."""
ELASTIC, LOSSY = diloco(membership="elastic"), diloco(membership="lossy")
LOSSY_OTHERWISE = diloco(membership="lossy-still"), diloco(membership="lossy-dropped")

ANCHOR = Setting(Arm("alone", steps=2000, batch=12, recipe="nanogpt"), 0.001, 1)
"""A published run, to see that model and training are as good as others' are; its text is not on every machine."""


@dataclass(frozen=True)
class Stage:
    """An arm that is to be known on so many seeds at its tuned rate; on none: a first look, at the first rate."""

    arm: Arm
    seeds: int


PLAN: tuple[Stage, ...] = (
    *(
        Stage(arm, 0)
        for arm in (
            DATA_PARALLEL,
            INT8,
            FP32,
            ALONE,
            *PERIODS,
            ELASTIC,
            INT4,
            AVERAGING,
            *OUTER,
            LOSSY,
            *LOSSY_OTHERWISE,
        )
    ),
    *(Stage(arm, 1) for arm in (DATA_PARALLEL, INT8, FP32, ALONE)),
    *(Stage(arm, 3) for arm in (DATA_PARALLEL, INT8, FP32, ALONE, OFTEN, ELASTIC)),
    *(Stage(arm, 1) for arm in LARGE_BATCHES),
    Stage(INT4, 3),
    *(Stage(arm, 3) for arm in MUON),
    *(Stage(arm, 1) for arm in (LOSSY, *LOSSY_OTHERWISE)),
    *(Stage(arm, 3) for arm in (LOSSY, *LOSSY_OTHERWISE)),
    *(Stage(arm, 1) for arm in (*PERIODS[1:], AVERAGING, *OUTER, ALONE_LONGER)),
    *(Stage(arm, 3) for arm in (*PERIODS[1:], *LARGE_BATCHES, AVERAGING, ALONE_LONGER)),
    *(Stage(arm, 5) for arm in (INT8, FP32, INT4, DATA_PARALLEL)),
    *(Stage(arm, 3) for arm in OUTER),
)


def best_rate(arm: Arm, found: Found) -> float | None:
    """The tuned rate of an arm; None as long as it is not known."""
    return _best(rates(arm, found)) if next(_to_tune(arm, found), None) is None else None


def rates(arm: Arm, found: Found) -> dict[float, float]:
    """The loss at each rate that was tried, on the seed that is tuned on."""
    return {setting.rate: found[setting].loss for setting in found if (setting.arm, setting.seed) == (arm, TUNED_ON)}


def missing(found: Found) -> Iterator[Setting]:
    """What is to be run next; more may follow from what comes of it."""
    for stage in PLAN:
        yield from (setting for setting in _wanted(stage, found) if setting not in found)


def _wanted(stage: Stage, found: Found) -> Iterator[Setting]:
    if stage.seeds == 0:
        yield Setting(stage.arm, START[0], TUNED_ON)
        return
    yield from _to_tune(stage.arm, found)
    rate = best_rate(stage.arm, found)
    if rate is not None:
        yield from (Setting(stage.arm, rate, seed) for seed in range(1, stage.seeds + 1))


def _to_tune(arm: Arm, found: Found) -> Iterator[Setting]:
    measured = rates(arm, found)
    for rate in START:
        if rate not in measured:
            yield Setting(arm, rate, TUNED_ON)
            return
    best = _best(measured)
    for rate in (best / 2, best * 2):
        if rate not in measured and LOWEST <= rate <= HIGHEST:
            yield Setting(arm, rate, TUNED_ON)
            return


def _best(measured: Mapping[float, float]) -> float:
    """The rate with the smallest loss; where all diverged, the lowest."""
    return min(measured, key=lambda rate: (measured[rate], rate))
