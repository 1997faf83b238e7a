"""What is known of a swarm from its peers' events. Pure: it is told events and the time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import fmean

from prime_p2p.monitor.events import Done, Event, Log, Progress, Ready
from prime_p2p.monitor.metrics import RoundMetrics
from prime_p2p.monitor.text import printable

_PACE_STEPS = 10  # outer steps that the time left is judged by
STARTING, FINISHED, LEFT, LOST = "starting", "finished", "left", "lost"  # besides the states of a peer itself


@dataclass
class PeerRow:
    """The newest figures of one peer; it is ``gone`` when it has finished or was lost."""

    name: str
    state: str = STARTING
    peer_id: str = ""
    outer_step: int = 0
    inner_step: int = 0
    inner_steps: int = 0
    loss: float | None = None
    tokens_per_second: float = 0.0
    group_size: int = 0
    bytes_sent: int = 0
    gone: bool = False
    steps: dict[int, RoundMetrics] = field(default_factory=dict)


class SwarmView:
    """The rows of the console, and the lines it tells as things happen."""

    def __init__(self, title: str, peers: tuple[str, ...], goal: int, now: float) -> None:
        """Know nothing yet of ``peers`` (their names), who are to make ``goal`` outer steps; ``now`` in seconds."""
        self.title = title
        self.goal = goal
        self.rows = {name: PeerRow(name) for name in peers}
        self._started = now
        self._commits: deque[tuple[float, int]] = deque(maxlen=_PACE_STEPS + 1)
        self._told_step = 0

    @property
    def outer_step(self) -> int:
        """Outer steps that the peer furthest ahead has committed."""
        return max((row.outer_step for row in self.rows.values()), default=0)

    def apply(self, name: str, event: Event, now: float) -> list[str]:
        """Take in one event of the peer ``name``; returns the lines worth telling."""
        row = self.rows[name]
        before = self.outer_step
        lines = self._take(row, event)
        if not self._commits:
            if isinstance(event, Progress) and event.state.value == "training":
                self._commits.append((now, self.outer_step))
        elif self.outer_step > before:
            self._commits.append((now, self.outer_step))
        return lines + self._finished_steps()

    def lose(self, name: str, reason: str) -> list[str]:
        """A peer is gone for good before its last outer step."""
        row = self.rows[name]
        row.state, row.gone = LOST, True
        left = sum(not other.gone for other in self.rows.values())
        what = f"peers left in the run: {left}"
        return [f"{name} lost at outer step {row.outer_step}: {printable(reason)}; {what}", *self._finished_steps()]

    def leave(self, name: str) -> None:
        """A peer has left because it was told to."""
        row = self.rows[name]
        row.state, row.gone = LEFT, True

    def elapsed(self, now: float) -> float:
        """Seconds since the swarm started."""
        return now - self._started

    def time_left(self, now: float) -> float | None:
        """Seconds until the last outer step at the pace of the last few; None before the first one."""
        if len(self._commits) < 2:
            return None
        (first_time, first_step), (last_time, last_step) = self._commits[0], self._commits[-1]
        pace = (last_time - first_time) / (last_step - first_step)
        return max(0.0, (self.goal - last_step) * pace - (now - last_time))

    def _take(self, row: PeerRow, event: Event) -> list[str]:
        match event:
            case Ready():
                row.peer_id, row.state = event.peer_id, "joining"
                return [f"{row.name} is {event.peer_id}"]
            case Progress():
                row.state = event.state.value
                row.outer_step = max(row.outer_step, event.outer_step)
                row.inner_step, row.inner_steps = event.inner_step, event.inner_steps
                row.loss = row.loss if event.loss is None else event.loss
                row.tokens_per_second, row.group_size = event.tokens_per_second, event.group_size
                row.bytes_sent = event.bytes_sent
            case RoundMetrics():
                row.outer_step = max(row.outer_step, event.outer_step)
                row.group_size = len(event.group)
                row.steps[event.outer_step] = event
            case Log():
                return [f"{row.name}: {printable(event.text)}"]
            case Done():
                row.outer_step, row.gone = event.outer_step, True
                row.state = FINISHED if event.outer_step >= self.goal else LEFT
                return [f"{row.name} {row.state} at outer step {event.outer_step}"]
        return []

    def _finished_steps(self) -> list[str]:
        """A line for each outer step that every peer still there has made, or that somebody has gone beyond."""
        reached = [row.outer_step for row in self.rows.values() if not row.gone] or [self.outer_step]
        complete = max(min(reached), self.outer_step - 1)
        lines = [line for step in range(self._told_step + 1, complete + 1) if (line := self._step_line(step))]
        self._told_step = max(self._told_step, complete)
        for row in self.rows.values():
            row.steps = {step: metrics for step, metrics in row.steps.items() if step > self._told_step}
        return lines

    def _step_line(self, step: int) -> str | None:
        made = [row.steps[step] for row in self.rows.values() if step in row.steps]
        if not made:
            return None  # the peers that made it are gone, or it was replayed
        parts = [f"group of {max(len(metrics.group) for metrics in made)}"]
        losses = [metrics.train_loss for metrics in made if metrics.train_loss is not None]
        validation = [metrics.val_loss for metrics in made if metrics.val_loss is not None]
        if losses:
            parts.insert(0, f"loss {fmean(losses):.4f}")
        if validation:
            parts.insert(1, f"validation {validation[0]:.4f}")
        parts.append(f"{max(metrics.bytes_sent for metrics in made) / 1e6:.2f} MB sent per peer")
        parts.append(f"{max(metrics.seconds.total for metrics in made):.1f} s")
        return f"outer step {step}/{self.goal}: " + ", ".join(parts)
