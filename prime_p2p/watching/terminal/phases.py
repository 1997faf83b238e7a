"""How many peers are in which phase of the round, as bars, and where the time of the last one went."""

from __future__ import annotations

from collections import Counter

from rich.text import Text

from prime_p2p.monitor.metrics import PHASES
from prime_p2p.watching.terminal.lines import STATE_STYLES, Lines
from prime_p2p.watching.view import RunView

_OF_A_ROUND = ("training", "gathering", "reducing", "applying")
_NAME, _COUNT = 10, 5  # columns


class Phases(Lines):
    """A line for each phase of a round, and one for the rest."""

    def on_mount(self) -> None:
        self.border_title = "phases"

    def show_run(self, view: RunView) -> None:
        counts = Counter(peer.state for peer in view.present)
        room = max(1, self.size.width - _NAME - _COUNT - 1)
        text = Text()
        for state in _OF_A_ROUND:
            count = counts.pop(state, 0)
            filled = -(-room * count // max(1, len(view.present)))  # never none where there is somebody
            text.append(f"{state:<{_NAME}}")
            text.append("█" * filled, STATE_STYLES[state])
            text.append("░" * (room - filled), "dim")
            text.append(f"{count:>{_COUNT}}\n")
        text.append(_rest(counts) or _time(view, self.size.width), "dim")
        self.show(text)


def _rest(counts: Counter[str]) -> str:
    return ", ".join(f"{state} {count}" for state, count in counts.most_common())


def _time(view: RunView, width: int) -> str:
    """Where the time of the newest outer step went, as far as that fits."""
    seconds: dict[str, float] = next((one["seconds"] for one in reversed(view.rounds())), {})
    total = seconds.get("total") or 1.0
    shares = [(100 * seconds.get(name, 0.0) / total, name) for name in PHASES]
    words = [f"{name} {share:.0f}%" for share, name in sorted(shares, reverse=True) if share >= 0.5]
    while len(line := " ".join(words)) > width:
        words.pop()
    return line
