"""The run in one line."""

from __future__ import annotations

from rich.text import Text

from prime_p2p.watching.figures import compact
from prime_p2p.watching.terminal.lines import Lines
from prime_p2p.watching.view import RunView

_WIDE = 100  # columns


class Headline(Lines):
    """What matters most goes first: the rest may be cut."""

    def show_run(self, view: RunView) -> None:
        there, share = view.present, view.compute_share
        text = Text()
        text.append(f" {view.name}", "bold")
        text.append(f"  outer step {view.outer_step}", "bold")
        text.append(f"  {len(there)} peer{'' if len(there) == 1 else 's'}")
        text.append(f"  {compact(view.tokens_per_second)} tok/s")
        text.append(f"  {'-' if share is None else f'{100 * share:.0f}'} % compute")
        text.append(f"  loss {'-' if view.loss is None else f'{view.loss:.4f}'}")
        if self.size.width >= _WIDE:
            text.append(f"  {compact(view.tokens)} tokens so far")
        self.show(text)
