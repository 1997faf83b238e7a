"""What the results say: an arm's losses at its tuned rate, and whether what was to be reached is reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from scripts.convergence.arms import Arm
from scripts.convergence.plan import DATA_PARALLEL, ELASTIC, FP32, INT4, INT8, LOSSY, PLAN, Found, best_rate, rates

QUOTED = 3
"""Seeds that an arm is measured on before anything is concluded from it."""


@dataclass(frozen=True)
class Measured:
    """An arm at its tuned rate."""

    arm: Arm
    rate: float
    losses: dict[int, float]  # by seed
    sent: float  # bytes that a peer uploads, the mean over seeds

    @property
    def loss(self) -> float:
        return fmean(self.losses.values())

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds; None with less than three of them."""
        return stdev(self.losses.values()) if len(self.losses) >= QUOTED else None

    @property
    def quoted(self) -> bool:
        return len(self.losses) >= QUOTED and math.isfinite(self.loss)


def measured(arm: Arm, found: Found) -> Measured | None:
    """What is known of an arm; None as long as its rate is not tuned."""
    rate = best_rate(arm, found)
    if rate is None:
        return None
    outcomes = {
        setting.seed: outcome for setting, outcome in found.items() if (setting.arm, setting.rate) == (arm, rate)
    }
    losses = {seed: outcome.loss for seed, outcome in sorted(outcomes.items())}
    return Measured(arm, rate, losses, fmean(outcome.sent for outcome in outcomes.values()))


def quoted(arm: Arm, found: Found) -> Measured | None:
    """As ``measured``, but None as long as it has too few seeds."""
    one = measured(arm, found)
    return one if one is not None and one.quoted else None


def difference(one: Measured, other: Measured) -> float:
    """The mean of one's loss minus the other's, over the seeds that both have."""
    return fmean(one.losses[seed] - other.losses[seed] for seed in one.losses.keys() & other.losses.keys())


def above(one: Measured, other: Measured) -> float:
    """How much higher one's loss is than the other's, as a share, over the seeds that both have."""
    return difference(one, other) / fmean(other.losses[seed] for seed in one.losses.keys() & other.losses.keys())


@dataclass(frozen=True)
class Verdict:
    """Whether something that was wanted is so: None where it is not measured yet."""

    wanted: str
    reached: bool | None
    because: str


def verdicts(found: Found) -> list[Verdict]:
    """What was wanted before anything was measured, and what came of it."""
    return [
        _quantised(INT8, found),
        _quantised(INT4, found),
        _cheap(found),
        _membership(ELASTIC, found),
        _membership(LOSSY, found),
    ]


def _quantised(arm: Arm, found: Found) -> Verdict:
    wanted = f"{arm.codec} and fp32 differ by less than the spread over seeds"
    coarse, exact = quoted(arm, found), quoted(FP32, found)
    if coarse is None or exact is None or exact.spread is None:
        return _unmeasured(wanted)
    gap = difference(coarse, exact)
    because = (
        f"{arm.codec} is {gap:+.4f} from fp32 on the same seeds; the standard deviation of fp32 is {exact.spread:.4f}"
    )
    return Verdict(wanted, abs(gap) < exact.spread, because)


def _cheap(found: Found) -> Verdict:
    wanted = "some DiLoCo sends at least 10 times less than data-parallel and ends within 1 % of its loss"
    pairs = [
        (one, parallel)
        for arm in dilocos()
        if (one := quoted(arm, found)) and (parallel := quoted(data_parallel(arm), found))
    ]
    cheap = [(one, parallel) for one, parallel in pairs if parallel.sent >= 10 * one.sent]
    if not cheap:
        return _unmeasured(wanted)
    one, parallel = min(cheap, key=lambda pair: above(*pair))
    within = [pair for pair in cheap if above(*pair) <= 0.01]
    if within:
        one, parallel = max(within, key=lambda pair: pair[1].sent / pair[0].sent)
    less = f"{parallel.sent / one.sent:.0f} times less than float32 gradients"
    same = f" from data-parallel with {one.arm.optimizer}"
    return Verdict(wanted, bool(within), f"{one.arm.title}: {less}, {above(one, parallel):+.1%}{same}")


def _membership(arm: Arm, found: Found) -> Verdict:
    what = {"elastic": "a peer leaves and another one joins", "lossy": "half of the exchanges are lost"}[arm.membership]
    wanted = f"where {what}, the loss is within 1 % of fixed membership"
    one, fixed = quoted(arm, found), quoted(INT8, found)
    if one is None or fixed is None:
        return _unmeasured(wanted)
    return Verdict(wanted, above(one, fixed) <= 0.01, f"{above(one, fixed):+.1%} on the same seeds")


def _unmeasured(wanted: str) -> Verdict:
    return Verdict(wanted, None, "too few seeds yet")


def data_parallel(arm: Arm) -> Arm:
    """What a DiLoCo arm is compared with: the same inner optimizer and as large a batch of each peer."""
    return replace(DATA_PARALLEL, batch=arm.batch, optimizer=arm.optimizer)


def dilocos() -> Sequence[Arm]:
    """Every DiLoCo arm with all peers and all exchanges."""
    arms = dict.fromkeys(stage.arm for stage in PLAN)
    return [arm for arm in arms if arm.method == "diloco" and arm.membership == "fixed"]


def gaps(found: Found) -> list[str]:
    """What of the plan is not measured, a line for each arm."""
    wanted: dict[Arm, int] = {}
    for stage in PLAN:
        wanted[stage.arm] = max(stage.seeds, wanted.get(stage.arm, 0))
    lines = []
    for arm, seeds in wanted.items():
        one = measured(arm, found)
        if one is None:
            lines.append(f"{arm.title}: {'its rate is being tuned' if rates(arm, found) else 'nothing'}")
        elif len(one.losses) < seeds:
            lines.append(f"{arm.title}: {len(one.losses)} of {seeds} seeds")
    return lines
