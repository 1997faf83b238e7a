"""The loss curve of the run."""

from __future__ import annotations

from rich.text import Text

from prime_p2p.watching.terminal.curve import curve
from prime_p2p.watching.terminal.lines import Lines
from prime_p2p.watching.view import RunView

_NUMBER = 8  # columns for the numbers of the axis


class Losses(Lines):
    """The mean training loss of each outer step that is known, with numbers at its axes."""

    def show_run(self, view: RunView) -> None:
        points = [(one["outer_step"], one["train_loss"]) for one in view.rounds() if one["train_loss"] is not None]
        self.border_title = _title(view)
        width, height = max(1, self.size.width - _NUMBER), max(1, self.size.height - 1)
        if not points:
            self.show(Text("no outer step is known yet", "dim"))
            return
        losses = [loss for _, loss in points]
        numbers = [f"{max(losses):.4g}", *[""] * (height - 2), f"{min(losses):.4g}"][-height:]
        text = Text()
        for number, dots in zip(numbers, curve(points, width, height), strict=True):
            text.append(f"{number:>{_NUMBER - 2}} ┤", "dim")
            text.append(f"{dots}\n", "green")
        first, last = (str(points[place][0]) for place in (0, -1))
        text.append(f"{'':{_NUMBER}}{first}{last.rjust(max(1, width - len(first)))}", "dim")
        self.show(text)


def _title(view: RunView) -> str:
    newest = view.validation()[-1:]
    return "loss by outer step" + "".join(f", validation {loss:.4f} at {step}" for step, loss in newest)
