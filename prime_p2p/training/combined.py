"""Several optimizers that are one to whoever steps, saves or clears them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch


class Combined(torch.optim.Optimizer):
    """Optimizers of different parameters: their groups one after the other, one ``state`` and one ``state_dict()``."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self._parts = parts
        super().__init__(list(chain.from_iterable(part.param_groups for part in parts)), {})
        self._share()

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step each of them from the gradients in place; there is nothing to evaluate again."""
        for part in self._parts:
            part.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with a state that ``state_dict()`` gave."""
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        """Have the parts work on the groups and the state that are kept here."""
        groups = iter(self.param_groups)
        for part in self._parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state
