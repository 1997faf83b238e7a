"""The command line, for whichever test gives it arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from prime_p2p import cli


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the command line with arguments and returns its exit code."""

    def run_with(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["prime-p2p", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0)

    return run_with
